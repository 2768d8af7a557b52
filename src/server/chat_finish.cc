#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "grammar/answer_grammar.h"
#include "server/request_fields.h"
#include "server/tool_reader.h"

// What all APIs of chat do with a conversation that they have read.

namespace thimble::server {
namespace {

bool IsBlank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

// ApiError where all that there is to answer is what the model cannot take, such as an image. With
// other content it has a text in its place.
void CheckHasText(const ChatRequest& chat) {
  std::span<const ChatMessage> messages = chat.messages;
  if (chat.continue_last) messages = messages.first(messages.size() - 1);
  bool any_placeholder = false;
  for (size_t i = messages.size(); i > 0; --i) {
    const ChatMessage& message = messages[i - 1];
    if (message.role == ChatRole::kSystem) continue;
    if (message.role != ChatRole::kUser) {
      if (message.role == ChatRole::kTool) return;
      break;
    }
    for (const ContentPart& part : message.content) {
      if (!part.is_placeholder && !IsBlank(part.text)) return;
      any_placeholder = any_placeholder || part.is_placeholder;
    }
  }
  if (!any_placeholder) return;
  throw ApiError(400,
                 "the message to answer holds nothing that this model can read: images, recordings "
                 "and files are not supported (vision is not built yet); add a text");
}

// The names of the functions that the model may call.
std::vector<std::string> CallableTools(const ChatRequest& chat) {
  if (!chat.callable_tools.empty()) return chat.callable_tools;
  std::vector<std::string> names;
  const auto add = [&names](const std::optional<JsonValue>& tools) {
    if (!tools) return;
    for (const JsonValue& tool : tools->items) {
      names.push_back(tool.Find("function")->Find("name")->text);
    }
  };
  add(chat.tools);
  for (const ChatMessage& message : chat.messages) add(message.tools);
  return names;
}

// Binds the answer to the format and the tools that are asked for, and notes what is not bound.
// What is there of an answer already must fit.
void BindReply(const ChatRequest& chat, const ServedModel& model, ApiRequest* request) {
  try {
    auto bound = BindAnswer(chat, FormOf(chat), *model.markup, *model.tokenizer);
    if (!bound) return;
    const bool has_begun = chat.continue_last && !request->thinking;
    request->job.filter = std::make_shared<TokenFilter>(
        model.trie ? model.trie : std::make_shared<LazyTokenTrie>(*model.tokenizer),
        std::move(bound->grammar),
        has_begun ? TextOf(chat.messages.back().content) : std::string());
    for (const std::string& place : bound->unbound) {
      request->notes.push_back(fmt::format("not enforced: {}", place));
    }
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
}

}  // namespace

void NoteIneffective(const RequestFields& fields, ChatRequest* chat) {
  if (fields.Boolean("store", false)) chat->AddNote("store: nothing is stored");
  if (fields.Find("verbosity") != nullptr) chat->AddNote("verbosity has no effect");
  if (fields.Find("web_search_options") != nullptr) {
    chat->AddNote("web_search_options: this server does not search the web");
  }
  if (!fields.Boolean("parallel_tool_calls", true)) chat->parallel_tool_calls = false;
}

void ReadFormat(const JsonValue& format, const std::string& path, ChatRequest* chat) {
  const JsonValue* type = format.FindSet("type");
  const std::string kind = type != nullptr && type->is_string() ? type->text : "";
  if (kind == "json_object") {
    chat->response_format = ResponseFormat::kJsonObject;
  } else if (kind == "json_schema") {
    const JsonValue* schema = format.FindSet("schema");
    if (schema == nullptr || !schema->is_object()) Refuse(path + ".schema", "an object");
    chat->response_format = ResponseFormat::kJsonSchema;
    chat->schema = *schema;
  } else if (kind != "text") {
    Refuse(path + ".type", "text, json_object or json_schema");
  }
}

void DropAttribution(std::string* text, ChatRequest* chat) {
  constexpr std::string_view kAttribution = "x-anthropic-";
  while (text->starts_with(kAttribution)) {
    const size_t end = text->find('\n');
    text->erase(0, end == std::string::npos ? end : end + 1);
    chat->AddNote("x-anthropic-billing-header was left out of the system text");
  }
}

void ContinueLastAnswer(ChatRequest* chat) {
  if (chat->messages.empty()) return;
  const ChatMessage& last = chat->messages.back();
  const bool is_empty = last.role == ChatRole::kAssistant && IsBlank(TextOf(last.content)) &&
                        IsBlank(last.reasoning) && last.tool_calls.empty();
  if (is_empty) {
    chat->messages.pop_back();
  } else {
    chat->continue_last = EndsWithAnswer(*chat);
  }
}

void FinishChatRequest(ChatRequest chat, std::optional<size_t> max_tokens, const ServedModel& model,
                       ApiRequest* request) {
  if (!model.markup) {
    throw ApiError(400, "this model knows no chat format; use /v1/completions");
  }
  if (chat.messages.empty()) Refuse("messages", "at least one");
  for (ChatMessage& message : chat.messages) {
    if (message.role != ChatRole::kSystem) continue;
    for (ContentPart& part : message.content) DropAttribution(&part.text, &chat);
  }
  CheckTools(&chat);
  CheckHasText(chat);
  request->is_chat = true;
  request->thinking = AnswersInThought(*model.markup, chat);
  request->tools = chat.tools.has_value() || std::ranges::any_of(chat.messages, [](const auto& m) {
                     return m.tools.has_value();
                   });
  if (chat.tool_choice == ToolChoice::kNone) request->tools = false;
  request->tool_names = CallableTools(chat);
  request->notes = chat.notes;
  EncodedPrompt prompt;
  try {
    prompt = EncodeChat(*model.tokenizer, chat);
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
  FinishRequest(std::move(prompt.ids), max_tokens, model, request);
  const bool has_tail = chat.tool_choice != ToolChoice::kAuto ||
                        chat.response_format != ResponseFormat::kText || chat.continue_last;
  BindReply(chat, model, request);
  if (has_tail) request->job.cut_at = prompt.history_length;
}

}  // namespace thimble::server
