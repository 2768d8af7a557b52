#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "chat/reply_parser.h"

namespace thimble {

/// Makes the JSON object of a call's arguments from elements as they stream in, and numbers the
/// calls. Strings go out piece by piece; other values once they are whole, as they were spelled
/// where that is valid JSON and as a string where it is not. Arguments that the model spelled as
/// JSON go out once they are whole: as they are where they are an object, as {} where they are
/// empty or null, else as {"raw": SPELLING}, so that every client can read them and send them back.
class ToolCallWriter {
 public:
  ToolCallWriter(const ReplyOptions& options, ReplyListener& listener)
      : wanted_(options.tools), functions_(options.functions), listener_(listener) {}

  /// A call of no function, or of one that was not offered, is dropped.
  void BeginCall(const std::string& name);
  void BeginArgument(std::string_view key, std::string_view type);
  /// All arguments at once, as the model spelled them.
  void BeginJson();
  void Text(std::string_view text);
  void EndElement();
  void EndCall();
  /// The answer broke off: closes a string and the call; half of another value is dropped.
  void Abort();

  size_t num_calls() const { return num_calls_; }

 private:
  enum class Element : uint8_t { kNone, kString, kScalar, kJson };

  void Put(std::string_view piece);
  void PutJson();

  const bool wanted_;
  const std::vector<std::string> functions_;  // empty: any
  ReplyListener& listener_;
  size_t num_calls_ = 0;
  bool in_call_ = false;
  bool any_argument_ = false;
  bool any_json_ = false;
  Element element_ = Element::kNone;
  std::string key_;
  std::string held_;  // of a scalar or JSON
};

}  // namespace thimble
