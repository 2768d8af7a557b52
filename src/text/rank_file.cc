#include "text/rank_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "base/base64.h"
#include "base/error.h"

namespace thimble {
namespace {

/// A line's text as a message may show it: short and printable.
std::string Quote(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kShown)) quoted += c >= ' ' && c <= '~' ? c : '?';
  return quoted + (text.size() > kShown ? "...\"" : "\"");
}

class RankFileParser {
 public:
  explicit RankFileParser(const std::string& name) : name_(name) {}

  // `is_cut`: the file ends without the end of this line.
  void AddLine(std::string_view line, bool is_cut) {
    ++line_number_;
    is_cut_ = is_cut;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) return;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) {
      Fail(fmt::format("expected \"base64 rank\", found {}", Quote(line)));
    }
    CheckRank(line.substr(space + 1));
    AddToken(line.substr(0, space));
  }

  TokenTable Finish() {
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      if (tokens_.Find({&c, 1})) continue;
      throw Error(
          ErrorCode::kBadModel,
          fmt::format("{}: expected all 256 single bytes among the tokens, found none for "
                      "byte {}; the file is cut short or of another kind: download it again",
                      name_, byte));
    }
    return std::move(tokens_);
  }

 private:
  void CheckRank(std::string_view text) {
    TokenId rank = 0;
    const char* end = text.data() + text.size();
    const auto [parsed_end, error] = std::from_chars(text.data(), end, rank);
    const bool canonical = !text.starts_with('0') || text == "0";
    if (error == std::errc() && parsed_end == end && canonical && rank == tokens_.size()) return;
    Fail(fmt::format("expected rank {}, found {}", tokens_.size(), Quote(text)));
  }

  void AddToken(std::string_view base64) {
    if (!DecodeBase64(base64, &token_))
      Fail(fmt::format("expected base64, found {}", Quote(base64)));
    if (token_.empty()) Fail("expected a token, found none");
    if (token_.size() > kMaxTokenBytes) {
      Fail(fmt::format("expected a token of at most {} bytes, found {}", kMaxTokenBytes,
                       token_.size()));
    }
    if (!tokens_.Add(token_)) {
      Fail(fmt::format("expected a new token, found the one of rank {} again",
                       *tokens_.Find(token_)));
    }
  }

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(
        ErrorCode::kBadModel,
        fmt::format("{}:{}: {}; {}", name_, line_number_, what,
                    is_cut_ ? "the file ends within this line, it is cut short: download it again"
                            : "download the model's tiktoken.model again"));
  }

  const std::string& name_;
  size_t line_number_ = 0;
  bool is_cut_ = false;
  TokenTable tokens_;
  std::string token_;  // reused from line to line
};

}  // namespace

TokenTable ParseRankFile(std::string_view contents, const std::string& name) {
  RankFileParser parser(name);
  while (!contents.empty()) {
    const size_t newline = std::min(contents.find('\n'), contents.size());
    parser.AddLine(contents.substr(0, newline), newline == contents.size());
    contents.remove_prefix(std::min(newline + 1, contents.size()));
  }
  return parser.Finish();
}

}  // namespace thimble
