#include "text/utf8_stream.h"

#include "text/utf8.h"

namespace thimble {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

void Utf8Stream::Feed(std::string_view bytes, std::string* text) {
  std::string joined;
  if (pending()) {
    joined.swap(pending_);
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t valid = ValidUtf8Prefix(bytes);
    text->append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    const Utf8Char bad = InspectUtf8(bytes);
    if (bad.status == Utf8Status::kTruncated) {
      pending_ = bytes;
      break;
    }
    text->append(kReplacement);
    bytes.remove_prefix(bad.length);
  }
}

void Utf8Stream::Flush(std::string* text) {
  if (pending()) text->append(kReplacement);
  pending_.clear();
}

}  // namespace thimble
