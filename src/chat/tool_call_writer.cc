#include "chat/tool_call_writer.h"

#include <algorithm>

#include "base/error.h"
#include "json/json_value.h"

namespace thimble {

void ToolCallWriter::Put(std::string_view piece) {
  if (!piece.empty()) listener_.OnToolArguments(num_calls_ - 1, piece);
}

void ToolCallWriter::BeginCall(const std::string& name) {
  EndCall();
  const bool offered =
      functions_.empty() || std::ranges::find(functions_, name) != functions_.end();
  in_call_ = wanted_ && offered && !name.empty();
  any_argument_ = false;
  any_json_ = false;
  if (in_call_) listener_.OnToolCall(num_calls_++, name);
}

void ToolCallWriter::BeginArgument(std::string_view key, std::string_view type) {
  EndElement();
  if (!in_call_ || any_json_) return;
  key_ = any_argument_ ? ",\"" : "{\"";
  EscapeJson(key, &key_);
  key_ += "\":";
  if (type == "string") {
    element_ = Element::kString;
    any_argument_ = true;
    Put(key_ + "\"");
  } else {
    element_ = Element::kScalar;
    held_.clear();
  }
}

void ToolCallWriter::BeginJson() {
  EndElement();
  if (!in_call_ || any_argument_ || any_json_) return;
  element_ = Element::kJson;
  any_json_ = true;
  held_.clear();
}

void ToolCallWriter::Text(std::string_view text) {
  if (element_ == Element::kString) {
    std::string escaped;
    EscapeJson(text, &escaped);
    Put(escaped);
  } else if (element_ != Element::kNone) {
    held_ += text;
  }
}

void ToolCallWriter::EndElement() {
  if (element_ == Element::kString) Put("\"");
  if (element_ == Element::kScalar) {
    any_argument_ = true;
    if (!IsJson(held_)) {
      std::string escaped;
      EscapeJson(held_, &escaped);
      held_ = "\"" + escaped + "\"";
    }
    Put(key_ + held_);
  }
  if (element_ == Element::kJson) PutJson();
  element_ = Element::kNone;
}

void ToolCallWriter::PutJson() {
  JsonValue value;  // null, as is no text at all
  const bool empty = held_.find_first_not_of(" \t\r\n") == std::string::npos;
  bool valid = true;
  try {
    if (!empty) value = ParseJson(held_);
  } catch (const Error&) {
    valid = false;
  }
  if (valid && value.is_object()) return Put(held_);
  if (valid && value.is_null()) return Put("{}");
  std::string raw = "{\"raw\":\"";
  EscapeJson(held_, &raw);
  Put(raw + "\"}");
}

void ToolCallWriter::EndCall() {
  EndElement();
  if (in_call_ && !any_json_) Put(any_argument_ ? "}" : "{}");
  in_call_ = false;
}

void ToolCallWriter::Abort() {
  if (element_ == Element::kScalar) element_ = Element::kNone;
  EndCall();
}

}  // namespace thimble
