/// Any bytes as a rank file, alone and behind the lines of the 256 single bytes: refused with
/// Error(kBadModel), or a table that finds each of its tokens.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/rank_file.h"
#include "text/tokenizer.h"

namespace {

using namespace thimble;

std::string MakeSingleBytes() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string file;
  for (size_t byte = 0; byte < 256; ++byte) {
    file += kAlphabet[byte >> 2];
    file += kAlphabet[(byte & 3) << 4];
    file += "== " + std::to_string(byte) + '\n';
  }
  return file;
}

void TryParse(std::string_view contents) {
  try {
    const TokenTable table = ParseRankFile(contents, "fuzz");
    THIMBLE_CHECK(table.size() >= 256);
    for (TokenId id = 0; id < table.size(); ++id) THIMBLE_CHECK(table.Find(table[id]) == id);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;
  }
}

void TryConfig(std::string_view ranks, std::string_view config) {
  try {
    const Tokenizer tokenizer =
        Tokenizer::Parse({.ranks = ranks, .config = config, .directory = "fuzz"});
    for (TokenId id = tokenizer.num_ranks(); id < tokenizer.vocab_size(); ++id) {
      THIMBLE_CHECK(tokenizer.FindSpecial(tokenizer.TokenBytes(id)) == id);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string single_bytes = MakeSingleBytes();
  const std::string input(reinterpret_cast<const char*>(data), size);
  TryParse(input);
  TryParse(single_bytes + input);
  TryConfig(single_bytes, input);
  return 0;
}
