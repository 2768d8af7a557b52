/// Any bytes, encoded as text and as markup with a small vocabulary: they decode to themselves,
/// text mode gives no reserved id, both ways to merge agree, and the streaming decoder gives valid
/// UTF-8 that does not depend on how the tokens cut it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/piece_merger.h"
#include "text/rank_file.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

namespace {

using namespace thimble;

void AddBase64(std::string_view bytes, std::string* text) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = i; j < i + 3; ++j) {
      bits = bits << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      *text += i + j > bytes.size() ? '=' : kAlphabet[bits >> (18 - 6 * j) & 63];
    }
  }
}

/// Merges that overlap and tie, parts of characters, spaces; some of them no merge can reach.
std::string MakeRankFile() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const char* const merges[] = {"aa",   "ab",   "ba",       "aab",      "abab",     "bb", "  ",
                                "    ", " a",   "\n\n",     "\xc3\xa9", "\xe4\xb8", "he", "ll",
                                "hell", "bcde", "\xf0\x9f", "<|",       "|>",       "'s", "aaaa"};
  for (const char* merge : merges) tokens.emplace_back(merge);
  std::string file;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    AddBase64(tokens[rank], &file);
    file += ' ' + std::to_string(rank) + '\n';
  }
  return file;
}

const std::string& RankFile() {
  static const std::string file = MakeRankFile();
  return file;
}

const Tokenizer& SmallTokenizer() {
  static const Tokenizer tokenizer = Tokenizer::Parse(
      {.ranks = RankFile(),
       .config = R"({"added_tokens_decoder": {"277": {"content": "<|sep|>", "special": false},
                                               "278": {"content": "<|sep|>>"},
                                               "279": {"content": "é"}}})",
       .directory = "fuzz"});
  return tokenizer;
}

void CheckMerges(std::string_view bytes) {
  static const TokenTable ranks = ParseRankFile(RankFile(), "fuzz");
  PieceMerger merger(ranks);
  std::vector<TokenId> by_scan;
  std::vector<TokenId> by_heap;
  merger.MergeByScan(bytes.substr(0, 2000), &by_scan);
  merger.MergeByHeap(bytes.substr(0, 2000), &by_heap);
  THIMBLE_CHECK(by_scan == by_heap);
}

void CheckStream(std::string_view bytes, const std::vector<TokenId>& ids) {
  Utf8Stream by_token;
  std::string text;
  for (const TokenId id : ids) by_token.Feed(SmallTokenizer().TokenBytes(id), &text);
  by_token.Flush(&text);
  Utf8Stream whole;
  std::string expected;
  whole.Feed(bytes, &expected);
  whole.Flush(&expected);
  THIMBLE_CHECK(text == expected);
  THIMBLE_CHECK(ValidUtf8Prefix(text) == text.size());
  if (ValidUtf8Prefix(bytes) == bytes.size()) THIMBLE_CHECK(text == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Tokenizer& tokenizer = SmallTokenizer();

  std::vector<TokenId> text;
  tokenizer.Encode(bytes, &text);
  THIMBLE_CHECK(tokenizer.Decode(text) == bytes);
  for (const TokenId id : text) THIMBLE_CHECK(id < tokenizer.num_ranks());

  std::vector<TokenId> markup;
  tokenizer.EncodeMarkup(bytes, &markup);
  THIMBLE_CHECK(tokenizer.Decode(markup) == bytes);

  CheckMerges(bytes);
  CheckStream(bytes, text);
  return 0;
}
