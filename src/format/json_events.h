#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/file.h"

namespace thimble {

/// A scalar of a JSON text. The formats read here hold only strings and unsigned integers; all else
/// (negative or fractional numbers, true, false, null) is kOther.
struct JsonScalar {
  enum class Kind : uint8_t { kString, kUnsigned, kOther };
  Kind kind = Kind::kOther;
  std::string_view text;  // kString: unescaped, valid during the call
  uint64_t number = 0;    // kUnsigned
};

/// Receives a JSON text as events, in order. Calls may throw; ParseJson passes that on.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  /// `bracket` is '{' or '['.
  virtual void Open(char bracket) = 0;
  virtual void Close() = 0;
  virtual void Key(std::string_view key) = 0;
  virtual void Scalar(const JsonScalar& scalar) = 0;
};

/// The deepest nesting accepted in a file of a checkpoint; the published ones need six.
inline constexpr size_t kMaxFileDepth = 64;

/// Parses exactly one JSON value that fills all of `text`. Error(kBadModel) names `source` and says
/// what is not JSON, or that it is nested deeper than kMaxFileDepth; then no call has been made.
/// Repeated keys are the handler's business. Costs about twice the text in memory meanwhile.
void ParseJson(std::string_view text, const std::string& source, JsonHandler& handler);

/// The same for a file, which is read whole: its size is the caller's to bound.
void ParseJson(const File& file, JsonHandler& handler);

}  // namespace thimble
