#include <map>
#include <utility>

#include "chat/prompt.h"

// Kimi-Linear's markup, which is also that of Kimi K2: flat messages between three markers. There
// is no channel for thinking, and no message for effort, tool choice or response format.

namespace thimble {
namespace {

constexpr std::string_view kDefaultSystem = "You are Kimi, an AI assistant created by Moonshot AI.";

class KimiLinearWriter {
 public:
  explicit KimiLinearWriter(const ChatRequest& request) : request_(request) {}

  RenderedPrompt Write() {
    if (request_.tools) {
      Begin("<|im_system|>", "tool_declare");
      out_.Text(WriteJson(*request_.tools, JsonStyle::kCompact));
      End();
    }
    const auto& messages = request_.messages;
    if (messages.empty() || messages.front().role != ChatRole::kSystem) {
      Begin("<|im_system|>", "system");
      out_.Text(kDefaultSystem);
      End();
    }
    std::vector<ChatMessage> sorted = SortToolResults(messages);
    ChatMessage answer;
    if (request_.continue_last) {
      answer = std::move(sorted.back());
      sorted.pop_back();
    }
    for (const ChatMessage& message : sorted) WriteMessage(message);
    const size_t history = out_.size();
    if (request_.continue_last || request_.add_generation_prompt) {
      Begin("<|im_assistant|>", answer.name.empty() ? "assistant" : answer.name);
      out_.Text(TextOf(answer.content));
    }
    return {out_.Take(), history};
  }

 private:
  void Begin(std::string_view marker, std::string_view name) {
    out_.Markup(marker);
    out_.Text(name);
    out_.Markup("<|im_middle|>");
  }
  void End() { out_.Markup("<|im_end|>"); }

  void WriteMessage(const ChatMessage& message) {
    const auto name_or = [&](std::string_view name) {
      return message.name.empty() ? std::string(name) : message.name;
    };
    switch (message.role) {
      case ChatRole::kSystem:
        Begin("<|im_system|>", name_or("system"));
        out_.Text(message.tools ? WriteJson(*message.tools, JsonStyle::kCompact)
                                : TextOf(message.content));
        break;
      case ChatRole::kUser:
        Begin("<|im_user|>", name_or("user"));
        out_.Text(TextOf(message.content));
        break;
      case ChatRole::kTool:
        Begin("<|im_system|>", name_or("tool"));
        out_.Text("## Return of " + CallName(message.tool_call_id) + "\n" +
                  TextOf(message.content));
        break;
      case ChatRole::kAssistant:
        Begin("<|im_assistant|>", name_or("assistant"));
        out_.Text(TextOf(message.content));
        WriteCalls(message.tool_calls);
        break;
    }
    End();
  }

  // What the model knows a call as; ids that belong to no call stay.
  std::string CallName(const std::string& id) const {
    const auto found = call_names_.find(id);
    return found == call_names_.end() ? id : found->second;
  }

  void WriteCalls(const std::vector<ToolCall>& calls) {
    if (calls.empty()) return;
    out_.Markup("<|tool_calls_section_begin|>");
    for (const ToolCall& call : calls) {
      const std::string name = "functions." + call.name + ":" + std::to_string(num_calls_++);
      if (!call.id.empty()) call_names_[call.id] = name;
      out_.Markup("<|tool_call_begin|>");
      out_.Text(name);
      out_.Markup("<|tool_call_argument_begin|>");
      out_.Text(call.raw_arguments ? *call.raw_arguments : Arguments(call));
      out_.Markup("<|tool_call_end|>");
    }
    out_.Markup("<|tool_calls_section_end|>");
  }
  static std::string Arguments(const ToolCall& call) {
    JsonValue object;
    object.kind = JsonValue::Kind::kObject;
    object.members = call.arguments;
    return WriteJson(object, JsonStyle::kPython);
  }

  const ChatRequest& request_;
  SegmentWriter out_;
  size_t num_calls_ = 0;  // over the whole conversation
  std::map<std::string, std::string> call_names_;
};

}  // namespace

RenderedPrompt RenderKimiLinear(const ChatRequest& request) {
  return KimiLinearWriter(request).Write();
}

}  // namespace thimble
