#include "server/tool_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "chat/content_reader.h"
#include "server/request_fields.h"

namespace thimble::server {
namespace {

constexpr size_t kMaxFunctionName = 256;
// What a result of a call that is not in the conversation is said to come from.
constexpr const char* kUnknownTool = "unknown";

// Names become part of the markup, and agents join servers and tools in them: "mcp.files/read".
bool IsFunctionName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxFunctionName &&
         std::ranges::all_of(name, [](unsigned char c) {
           return std::isalnum(c) != 0 || c >= 0x80 ||
                  std::string_view("_-./:").find(static_cast<char>(c)) != std::string_view::npos;
         });
}

JsonValue ObjectOf(std::vector<JsonMember> members) {
  JsonValue object;
  object.kind = JsonValue::Kind::kObject;
  object.members = std::move(members);
  return object;
}

JsonValue FunctionTool(JsonValue function) {
  return ObjectOf({{"type", JsonValue::String("function")}, {"function", std::move(function)}});
}

// Whether a flat tool is a function: of OpenAI's responses by its type, of Anthropic's messages by
// having none, or a schema of its input.
bool IsFlatFunction(const JsonValue& tool, const std::string& type) {
  if (tool.FindSet("name") == nullptr) return false;
  return type.empty() || type == "function" ||
         (type == "custom" && tool.FindSet("input_schema") != nullptr);
}

JsonValue ConvertFlatFunction(const JsonValue& tool) {
  std::vector<JsonMember> function;
  for (const auto& [theirs, ours] : {std::pair("name", "name"),
                                     {"description", "description"},
                                     {"parameters", "parameters"},
                                     {"input_schema", "parameters"}}) {
    if (const JsonValue* value = tool.FindSet(theirs)) function.push_back({ours, *value});
  }
  return FunctionTool(ObjectOf(std::move(function)));
}

void CheckName(const JsonValue& function, const std::string& path) {
  if (IsFunctionName(FindText(function, "name"))) return;
  Refuse(path + ".name", "1 to 256 letters, digits, '_', '-', '.', '/' or ':'");
}

void NoteLeftOut(const std::string& type, const JsonValue& tool, ChatRequest* chat) {
  const std::string name = FindText(tool, "name");
  chat->AddNote(
      fmt::format("the tool {} of type {} is not offered to the model: only functions are",
                  name.empty() ? type : name, type));
}

JsonValue ReadToolArray(const JsonValue& tools, const std::string& path, ChatRequest* chat) {
  if (!tools.is_array()) Refuse(path, "an array");
  JsonValue read;
  read.kind = JsonValue::Kind::kArray;
  for (size_t i = 0; i < tools.items.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    const JsonValue& tool = tools.items[i];
    if (!tool.is_object()) Refuse(place, "an object");
    const JsonValue* named = tool.FindSet("type");
    if (named != nullptr && !named->is_string()) Refuse(place + ".type", "a string");
    const std::string type = FindText(tool, "type");
    const JsonValue* function = tool.FindSet("function");
    if (function != nullptr && (type.empty() || type == "function")) {
      if (!function->is_object()) Refuse(place + ".function", "an object");
      CheckName(*function, place + ".function");
      read.items.push_back(type.empty() ? FunctionTool(*function) : tool);
    } else if (IsFlatFunction(tool, type)) {
      CheckName(tool, place);
      read.items.push_back(ConvertFlatFunction(tool));
    } else if (type.empty() || type == "function") {
      Refuse(place + ".function", "an object");
    } else {
      NoteLeftOut(type, tool, chat);
    }
  }
  return read;
}

void AddNames(const JsonValue& tools, const std::string& path, std::set<std::string>* names) {
  for (const JsonValue& tool : tools.items) {
    const std::string name = FindText(*tool.FindSet("function"), "name");
    if (!names->insert(name).second) {
      Refuse(path, fmt::format("names that differ, found {} twice", name));
    }
  }
}

void CheckChoice(const ChatRequest& chat, const std::set<std::string>& names) {
  for (const std::string& name : chat.callable_tools) {
    if (names.contains(name)) continue;
    Refuse("tool_choice", fmt::format("names of tools that are offered, found {}", name));
  }
  if (chat.tool_choice == ToolChoice::kRequired && names.empty()) {
    Refuse("tools", "at least one, where tool_choice requires a call");
  }
}

// Clients drop the oldest messages of long conversations, and with them calls whose results stay.
class ResultNamer {
 public:
  explicit ResultNamer(ChatRequest* chat) : chat_(chat) {}

  void Name() {
    for (ChatMessage& message : chat_->messages) {
      if (message.role == ChatRole::kAssistant) {
        num_latest_ = message.tool_calls.size();
        num_results_ = 0;
        for (const ToolCall& call : message.tool_calls) names_.emplace(call.id, call.name);
      } else if (message.role == ChatRole::kTool) {
        NameResult(message);
      }
    }
  }

 private:
  void NameResult(ChatMessage& result) {
    // The template names results of the latest calls, by id or by place.
    const bool has_place = num_results_++ < num_latest_;
    if (!result.tool.empty() || !result.name.empty()) return;
    const auto known = names_.find(result.tool_call_id);
    if (known != names_.end()) {
      if (!has_place) result.tool = known->second;
      return;
    }
    chat_->AddNote("a result of a tool belongs to no call in the conversation");
    if (!has_place) result.tool = kUnknownTool;
  }

  ChatRequest* chat_;
  std::map<std::string, std::string> names_;  // of calls, by id; of equal ids the first
  size_t num_latest_ = 0;                     // calls of the latest answer
  size_t num_results_ = 0;                    // since then
};

}  // namespace

void ReadTools(const JsonValue& tools, const std::string& path, ChatRequest* chat) {
  JsonValue read = ReadToolArray(tools, path, chat);
  if (!read.items.empty()) chat->tools = std::move(read);
}

void CheckTools(ChatRequest* chat) {
  std::set<std::string> names;
  if (chat->tools) AddNames(*chat->tools, "tools", &names);
  for (size_t i = 0; i < chat->messages.size(); ++i) {
    ChatMessage& message = chat->messages[i];
    const std::string path = fmt::format("messages[{}]", i);
    if (message.tools) {
      if (!TextOf(message.content).empty()) Refuse(path, "either tools or content, not both");
      message.tools = ReadToolArray(*message.tools, path + ".tools", chat);
      AddNames(*message.tools, path + ".tools", &names);
    }
    if (message.role == ChatRole::kTool && message.tool_call_id.empty()) {
      Refuse(path + ".tool_call_id", "the id of a call");
    }
  }
  CheckChoice(*chat, names);
  ResultNamer(chat).Name();
}

}  // namespace thimble::server
