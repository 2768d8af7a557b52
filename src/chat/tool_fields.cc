#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "chat/chat_request.h"
#include "chat/content_reader.h"

// Arguments of calls, and choices among tools: fields that every API of the clients has.

namespace thimble {
namespace {

constexpr const char* kChoices =
    "auto, none, required, the name of a function, or allowed_tools with names";

[[noreturn]] void FailChoice(const std::string& found) {
  throw Error(ErrorCode::kUsage,
              fmt::format("tool_choice: expected {}, found {}", kChoices, found));
}

// "required" in OpenAI's words, "any" in Anthropic's.
ToolChoice ReadMode(const std::string& mode) {
  if (mode == "auto" || mode.empty()) return ToolChoice::kAuto;
  if (mode == "none") return ToolChoice::kNone;
  if (mode == "required" || mode == "any") return ToolChoice::kRequired;
  FailChoice("'" + mode + "'");
}

// The name of a tool in {"name": N}, {"function": {"name": N}} or {"custom": {"name": N}}; without
// any, its type: tools that a client's server would have run have no other.
std::string NameOfTool(const JsonValue& tool) {
  std::string name = FindText(tool, "name");
  for (const char* key : {"function", "custom"}) {
    const JsonValue* inner = tool.FindSet(key);
    if (name.empty() && inner != nullptr) name = FindText(*inner, "name");
  }
  if (name.empty()) name = FindText(tool, "type");
  if (name.empty()) FailChoice("a tool without a name");
  return name;
}

void ReadAllowedTools(const JsonValue& choice, ChatRequest* request) {
  const JsonValue* inner = choice.FindSet("allowed_tools");
  const JsonValue& allowed = inner != nullptr && inner->is_object() ? *inner : choice;
  const std::string mode = FindText(allowed, "mode");
  request->tool_choice = ReadMode(mode);
  const JsonValue* tools = allowed.FindSet("tools");
  if (tools == nullptr || !tools->is_array() || tools->items.empty()) {
    FailChoice("allowed_tools without tools");
  }
  for (const JsonValue& tool : tools->items) {
    request->callable_tools.push_back(NameOfTool(tool));
  }
}

}  // namespace

void ReadToolArguments(const JsonValue& arguments, ToolCall* call) {
  if (arguments.is_null()) return;
  if (arguments.is_object()) {
    call->arguments = arguments.members;
    return;
  }
  if (!arguments.is_string()) {
    call->raw_arguments = WriteJson(arguments, JsonStyle::kPython);
    return;
  }
  if (arguments.text.find_first_not_of(" \t\r\n") == std::string::npos) return;
  JsonValue parsed;
  try {
    parsed = ParseJson(arguments.text);
  } catch (const Error&) {
    call->raw_arguments = arguments.text;
    return;
  }
  if (parsed.is_object()) {
    call->arguments = std::move(parsed.members);
  } else if (!parsed.is_null()) {
    call->raw_arguments = arguments.text;
  }
}

void ReadToolChoice(const JsonValue& choice, ChatRequest* request) {
  if (choice.is_string()) {
    request->tool_choice = ReadMode(choice.text);
    return;
  }
  if (!choice.is_object()) FailChoice("other JSON");
  const JsonValue* parallel = choice.FindSet("disable_parallel_tool_use");
  if (parallel != nullptr && parallel->boolean) request->parallel_tool_calls = false;
  const std::string type = FindText(choice, "type");
  if (type == "auto" || type == "any" || type == "none" || type == "required") {
    request->tool_choice = ReadMode(type);
  } else if (type == "allowed_tools") {
    ReadAllowedTools(choice, request);
  } else {
    request->callable_tools = {NameOfTool(choice)};
    request->tool_choice = ToolChoice::kRequired;
  }
}

}  // namespace thimble
