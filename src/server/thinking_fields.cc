#include "server/thinking_fields.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "chat/content_reader.h"

namespace thimble::server {
namespace {

// Collects what a request says in several places.
class ThinkingReader {
 public:
  ThinkingReader(const RequestFields& fields, ChatRequest* chat) : fields_(fields), chat_(chat) {}

  void Read() {
    // Of levels the latest counts.
    ReadTemplateArguments();
    Level("reasoning_effort", fields_.Find("reasoning_effort"));
    ReadReasoning();
    if (const JsonValue* output = fields_.Object("output_config")) {
      Level("output_config.effort", output->FindSet("effort"));
    }
    Switch("enable_thinking", fields_.Find("enable_thinking"));
    Budget("thinking_budget", fields_.Find("thinking_budget"));
    ReadThinkingField();
  }

  void Apply(const std::string& served_effort) {
    chat_->thinking = !served_effort.empty();
    chat_->effort = served_effort;
    if (off_) return SetEffort("off", "thinking", chat_);
    if (!level_.empty()) return SetEffort(level_, level_field_, chat_);
    if (on_ && !chat_->thinking) SetEffort("low", "thinking", chat_);
  }

 private:
  void Level(const std::string& field, const JsonValue* value) {
    if (value == nullptr) return;
    if (!value->is_string()) Refuse(field, "a string");
    if (value->text.empty()) return;
    level_ = value->text;
    level_field_ = field;
  }
  void Switch(const std::string& field, const JsonValue* value) {
    if (value == nullptr) return;
    if (!value->is_boolean()) Refuse(field, "true or false");
    (value->boolean ? on_ : off_) = true;
  }
  // Thoughts are not counted while they are made, so of a budget only 0 means something.
  void Budget(const std::string& field, const JsonValue* value) {
    if (value == nullptr) return;
    const auto tokens = FindInteger(*value);
    if (!tokens || *tokens < -1) Refuse(field, "an integer of at least 0, or -1 for no limit");
    if (*tokens == 0) off_ = true;
    if (*tokens > 0) chat_->AddNote(fmt::format("{} has no effect; set an effort", field));
  }

  void ReadTemplateArguments() {
    const JsonValue* arguments = fields_.Object("chat_template_kwargs");
    if (arguments == nullptr) return;
    for (const JsonMember& argument : arguments->members) {
      const std::string field = "chat_template_kwargs." + argument.key;
      const JsonValue* value = argument.value.is_null() ? nullptr : &argument.value;
      if (argument.key == "thinking" || argument.key == "enable_thinking") {
        Switch(field, value);
      } else if (argument.key == "thinking_effort" || argument.key == "reasoning_effort") {
        Level(field, value);
      } else {
        chat_->AddNote("chat_template_kwargs: only thinking and thinking_effort have an effect");
      }
    }
  }

  void ReadReasoning() {
    const JsonValue* reasoning = fields_.Object("reasoning");
    if (reasoning == nullptr) return;
    Switch("reasoning.enabled", reasoning->FindSet("enabled"));
    Budget("reasoning.max_tokens", reasoning->FindSet("max_tokens"));
    Level("reasoning.effort", reasoning->FindSet("effort"));
  }

  void ReadThinkingField() {
    const JsonValue* thinking = fields_.Find("thinking");
    if (thinking == nullptr) return;
    if (thinking->is_boolean()) return Switch("thinking", thinking);
    if (!thinking->is_object()) Refuse("thinking", "an object, true or false");
    const std::string type = FindText(*thinking, "type");
    (type == "disabled" ? off_ : on_) = true;
    Level("thinking.effort", thinking->FindSet("effort"));
    Budget("thinking.budget_tokens", thinking->FindSet("budget_tokens"));
  }

  const RequestFields& fields_;
  ChatRequest* chat_;
  bool on_ = false;
  bool off_ = false;
  std::string level_;
  std::string level_field_;
};

}  // namespace

void SetEffort(const std::string& level, const std::string& field, ChatRequest* chat) {
  static const std::set<std::string> off = {"none", "minimal", "off", "disabled"};
  chat->thinking = !off.contains(level);
  if (!chat->thinking) {
    chat->effort.clear();
  } else if (level == "low") {
    chat->effort = "low";
  } else if (level == "medium" || level == "high") {
    chat->effort = "high";
  } else if (level == "max" || level == "xhigh") {
    chat->effort = "max";
  } else {
    Refuse(field, fmt::format("none, minimal, low, medium, high, xhigh or max, found '{}'", level));
  }
}

void ReadThinking(const RequestFields& fields, const ServedModel& model, ChatRequest* chat) {
  ThinkingReader reader(fields, chat);
  reader.Read();
  reader.Apply(model.effort);
}

}  // namespace thimble::server
