#include <array>
#include <initializer_list>
#include <utility>

#include "base/error.h"
#include "chat/prompt.h"

// Kimi K3's markup. A prompt is
//   [tools] [effort] message* [tool choice] [response format] beginning-of-answer
// and an element  open(tag attributes) content close(tag), with the markers as special tokens.
// The fixed texts are the model's training format and must not change by a byte.

namespace thimble {
namespace {

constexpr std::string_view kToolsText =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";
constexpr std::string_view kMoreToolsText =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n```json\n";
constexpr std::string_view kToolsEnd = "\n```";
constexpr std::string_view kEffortText =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=";
constexpr std::string_view kEffortEnd = "`.";
constexpr std::string_view kRequiredText =
    "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.";
constexpr std::string_view kNoToolsText =
    "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.";
constexpr std::string_view kJsonText =
    "The system is invoked with `response_format=json_object`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";
constexpr std::string_view kSchemaText =
    "The system is invoked with `response_format=json_schema`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.\nThe JSON data must match the following schema:\n```json\n";

std::string Join(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

std::string EscapeAttribute(std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

struct Attribute {
  std::string_view key;
  std::string_view value;
};

class KimiK3Writer {
 public:
  explicit KimiK3Writer(const ChatRequest& request) : request_(request) {}

  RenderedPrompt Write() {
    if (request_.tools) WriteTools(kToolsText, *request_.tools);
    if (request_.thinking && !request_.effort.empty()) {
      CheckEffort(request_.effort);
      SystemMessage("thinking-effort", Join({kEffortText, request_.effort, kEffortEnd}));
    }
    std::vector<ChatMessage> messages = SortToolResults(request_.messages);
    ChatMessage answer;
    if (request_.continue_last) {
      answer = std::move(messages.back());
      messages.pop_back();
    }
    for (const ChatMessage& message : messages) WriteMessage(message);
    const size_t history = out_.size();
    WriteToolChoice();
    WriteResponseFormat();
    if (request_.continue_last || request_.add_generation_prompt) BeginAnswer(answer);
    return {out_.Take(), history};
  }

 private:
  void Open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    out_.Markup("<|open|>");
    out_.Text(tag);
    for (const Attribute& attribute : attributes) {
      out_.Text(Join({" ", attribute.key}));
      out_.Text("=\"");
      out_.Text(EscapeAttribute(attribute.value));
      out_.Text("\"");
    }
    out_.Markup("<|sep|>");
  }
  void Close(std::string_view tag) {
    out_.Markup("<|close|>");
    out_.Text(tag);
    out_.Markup("<|sep|>");
  }
  void EndMessage() {
    Close("message");
    out_.Markup("<|end_of_msg|>");
  }

  void SystemMessage(std::string_view type, std::string_view body) {
    Open("message", {{"role", "system"}, {"type", type}});
    out_.Text(body);
    EndMessage();
  }
  void WriteTools(std::string_view text, const JsonValue& tools) {
    SystemMessage("tool-declare",
                  Join({text, WriteJson(tools, JsonStyle::kCompactSorted), kToolsEnd}));
  }
  void WriteToolChoice() {
    if (request_.tool_choice == ToolChoice::kRequired) SystemMessage("tool-choice", kRequiredText);
    if (request_.tool_choice == ToolChoice::kNone) SystemMessage("tool-choice", kNoToolsText);
  }
  void WriteResponseFormat() {
    if (request_.response_format == ResponseFormat::kJsonObject) {
      SystemMessage("response-format", kJsonText);
    } else if (request_.response_format == ResponseFormat::kJsonSchema) {
      const std::string schema = WriteJson(request_.schema, JsonStyle::kCompactSorted);
      SystemMessage("response-format", Join({kSchemaText, schema, kToolsEnd}));
    }
  }

  void WriteContent(const std::vector<ContentPart>& content) {
    for (const ContentPart& part : content) {
      if (!part.image) {
        out_.Text(part.text);
        continue;
      }
      out_.Markup(Join({"<|media_begin|>image ", std::to_string(part.image->width), "x",
                        std::to_string(part.image->height),
                        "<|media_content|><|media_pad|><|media_end|>"}));
    }
  }

  void WriteMessage(const ChatMessage& message) {
    switch (message.role) {
      case ChatRole::kSystem:
        if (message.tools) return WriteTools(kMoreToolsText, *message.tools);
        return WritePlain("system", message);
      case ChatRole::kUser:
        return WritePlain("user", message);
      case ChatRole::kTool:
        return WriteResult(message);
      case ChatRole::kAssistant:
        return WriteAnswer(message);
    }
  }

  void OpenMessage(std::string_view role, const ChatMessage& message) {
    if (message.name.empty()) {
      Open("message", {{"role", role}});
    } else {
      Open("message", {{"role", role}, {"name", message.name}});
    }
  }
  void WritePlain(std::string_view role, const ChatMessage& message) {
    OpenMessage(role, message);
    WriteContent(message.content);
    EndMessage();
  }

  void WriteResult(const ChatMessage& message) {
    std::string tool = message.tool.empty() ? message.name : message.tool;
    if (tool.empty() && num_results_ < calls_.size()) tool = calls_[num_results_].name;
    if (tool.empty()) {
      throw Error(ErrorCode::kUsage,
                  "a tool message answers no tool call of the assistant before it; give the "
                  "tool_call_id of a call that is in the conversation");
    }
    const std::string index = std::to_string(++num_results_);
    Open("message", {{"role", "tool"}, {"tool", tool}, {"index", index}});
    WriteContent(message.content);
    EndMessage();
  }

  void OpenThought(const ChatMessage& message) {
    Open("think");
    if (message.reasoning.find_first_not_of(" \t\r\n\v\f") != std::string::npos) {
      out_.Text(message.reasoning);
    }
  }
  void WriteThought(const ChatMessage& message) {
    if (!request_.thinking) return;
    OpenThought(message);
    Close("think");
  }

  // What there is already of an answer that the model is to go on with.
  void BeginAnswer(const ChatMessage& message) {
    OpenMessage("assistant", message);
    if (AnswersInThought(ChatMarkup::kKimiK3, request_)) return OpenThought(message);
    WriteThought(message);
    Open("response");
    WriteContent(message.content);
  }

  void WriteAnswer(const ChatMessage& message) {
    OpenMessage("assistant", message);
    WriteThought(message);
    Open("response");
    WriteContent(message.content);
    Close("response");
    if (!message.tool_calls.empty()) {
      Open("tools");
      for (size_t i = 0; i < message.tool_calls.size(); ++i)
        WriteCall(message.tool_calls[i], i + 1);
      Close("tools");
    }
    EndMessage();
    calls_ = message.tool_calls;
    num_results_ = 0;
  }

  void WriteCall(const ToolCall& call, size_t index) {
    Open("call", {{"tool", call.name}, {"index", std::to_string(index)}});
    if (call.raw_arguments) {
      Open("json", {{"type", "object"}});
      out_.Text(*call.raw_arguments);
      Close("json");
    }
    for (const JsonMember& argument : call.arguments) WriteArgument(argument);
    Close("call");
  }

  void WriteArgument(const JsonMember& argument) {
    // By JsonValue::Kind.
    static constexpr std::array<std::string_view, 7> kTypes = {
        "null", "boolean", "number", "number", "string", "array", "object"};
    const JsonValue& value = argument.value;
    Open("argument", {{"key", argument.key}, {"type", kTypes[static_cast<size_t>(value.kind)]}});
    out_.Text(value.is_string() ? value.text : WriteJson(value, JsonStyle::kPython));
    Close("argument");
  }

  const ChatRequest& request_;
  SegmentWriter out_;
  std::vector<ToolCall> calls_;  // of the latest answer
  size_t num_results_ = 0;       // since then
};

}  // namespace

RenderedPrompt RenderKimiK3(const ChatRequest& request) { return KimiK3Writer(request).Write(); }

}  // namespace thimble
