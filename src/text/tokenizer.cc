#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>

#include "base/error.h"
#include "format/config_json.h"
#include "io/foreign_file.h"
#include "json/json_fields.h"
#include "text/piece_merger.h"
#include "text/pretokenizer.h"
#include "text/rank_file.h"
#include "text/slicer.h"
#include "text/utf8.h"

namespace thimble {
namespace {

constexpr char kRankFile[] = "tiktoken.model";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kFetchAgain[] = "; fetch the model's tokenizer_config.json again";

/// Far above any vocabulary (Kimi's is 2.7 MB); keeps TokenTable within its 32-bit offsets.
constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

struct Slot {
  std::string name;
  bool special = true;
};

using Slots = std::array<Slot, Tokenizer::kNumReserved>;

/// Reads added_tokens_decoder: {"163584": {"content": "[BOS]", "special": true, ...}, ...}.
class ConfigReader {
 public:
  ConfigReader(std::string path, TokenId num_ranks)
      : path_(std::move(path)), num_ranks_(num_ranks) {}

  void Read(std::string_view json, Slots* slots) const {
    const JsonValue root = ParseConfigJson(json, path_);
    const JsonFields names = JsonFields(root, {path_}).Object("added_tokens_decoder");
    for (const JsonMember& name : names.Members()) {
      (*slots)[SlotOf(name.key)] = ReadSlot(names.Object(name.key));
    }
  }

 private:
  TokenId SlotOf(const std::string& text) const {
    TokenId id = 0;
    const char* end = text.data() + text.size();
    const auto [parsed_end, error] = std::from_chars(text.data(), end, id);
    if (error != std::errc() || parsed_end != end || id < num_ranks_ ||
        id - num_ranks_ >= Tokenizer::kNumReserved) {
      Fail("added_tokens_decoder: expected ids from " + std::to_string(num_ranks_) + " to " +
           std::to_string(num_ranks_ + Tokenizer::kNumReserved - 1) + " (behind the ranks of " +
           kRankFile + "), found \"" + text + '"');
    }
    return id - num_ranks_;
  }

  static Slot ReadSlot(const JsonFields& entry) {
    std::string content = entry.Text("content");
    entry.Check(!content.empty(), "content", "a string that is not empty");
    return {std::move(content), entry.MaybeBool("special").value_or(true)};
  }

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kBadModel, path_ + ": " + what + kFetchAgain);
  }

  std::string path_;
  TokenId num_ranks_;
};

std::string PathIn(const std::string& directory, const char* file) {
  return (std::filesystem::path(directory) / file).string();
}

}  // namespace

/// One call of Encode or EncodeMarkup: the tokenizer, the output and the scratch between pieces.
class TokenizerEncoder {
 public:
  TokenizerEncoder(const Tokenizer& tokenizer, std::vector<TokenId>* ids)
      : tokenizer_(tokenizer), merger_(tokenizer.ranks_), ids_(ids) {}

  void EncodeBytes(std::string_view bytes, bool markup) {
    while (!bytes.empty()) {
      const size_t valid = ValidUtf8Prefix(bytes);
      EncodeCharacters(bytes.substr(0, valid), markup);
      bytes.remove_prefix(valid);
      if (bytes.empty()) break;
      const size_t invalid = InspectUtf8(bytes).length;
      for (size_t i = 0; i < invalid; ++i) EncodePiece(bytes.substr(i, 1));
      bytes.remove_prefix(invalid);
    }
  }

 private:
  void EncodeCharacters(std::string_view text, bool markup) {
    Slicer slicer(text);
    std::string_view slice;
    while (slicer.Next(&slice)) {
      if (markup) {
        EncodeWithSpellings(slice);
      } else {
        EncodeOrdinary(slice);
      }
    }
  }

  void EncodeWithSpellings(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
      const size_t length = tokenizer_.MatchSpelling(text.substr(at));
      if (length == 0) {
        ++at;
        continue;
      }
      EncodeOrdinary(text.substr(0, at));
      ids_->push_back(*tokenizer_.FindSpecial(text.substr(at, length)));
      text.remove_prefix(at + length);
      at = 0;
    }
    EncodeOrdinary(text);
  }

  void EncodeOrdinary(std::string_view text) {
    PieceCutter cutter(text);
    std::string_view piece;
    while (cutter.Next(&piece)) EncodePiece(piece);
  }

  void EncodePiece(std::string_view piece) {
    // Most pieces are one token. This is also part of the definition: merging need not find it.
    if (const auto id = tokenizer_.ranks_.Find(piece)) {
      ids_->push_back(*id);
    } else {
      merger_.Merge(piece, ids_);
    }
  }

  const Tokenizer& tokenizer_;
  PieceMerger merger_;
  std::vector<TokenId>* ids_;
};

Tokenizer Tokenizer::Load(const std::filesystem::path& dir, std::optional<size_t> vocab_size) {
  const std::string ranks = ReadModelText(dir / kRankFile, kMaxTokenizerBytes);
  TokenizerFiles files{
      .ranks = ranks, .config = std::nullopt, .directory = dir.string(), .vocab_size = vocab_size};
  std::string config;
  if (std::filesystem::exists(dir / kTokenizerConfig)) {
    config = ReadModelText(dir / kTokenizerConfig, kMaxTokenizerBytes);
    files.config = config;
  }
  return Parse(files);
}

Tokenizer Tokenizer::Parse(const TokenizerFiles& files) {
  Tokenizer tokenizer;
  tokenizer.directory_ = files.directory;
  tokenizer.ranks_ = ParseRankFile(files.ranks, PathIn(files.directory, kRankFile));
  // Before the names: with too few ranks, they would all seem wrong.
  if (files.vocab_size) tokenizer.CheckVocabulary(*files.vocab_size);
  tokenizer.NameSlots(files);
  tokenizer.IndexSpellings();
  return tokenizer;
}

void Tokenizer::CheckVocabulary(size_t expected) const {
  if (vocab_size() == expected) return;
  throw Error(
      ErrorCode::kBadModel,
      fmt::format("{}: expected {} ids (vocab_size of config.json), found {}: {} ranks and {} "
                  "reserved; {}",
                  PathIn(directory_, kRankFile), expected, vocab_size(), num_ranks(), kNumReserved,
                  vocab_size() < expected
                      ? "the file is cut short, or of another model: download it again"
                      : "the file is of another model: take the one of this model"));
}

void Tokenizer::NameSlots(const TokenizerFiles& files) {
  Slots slots;
  for (TokenId i = 0; i < kNumReserved; ++i) {
    slots[i].name = "<|reserved_token_" + std::to_string(num_ranks() + i) + "|>";
  }
  const std::string path = PathIn(files.directory, kTokenizerConfig);
  has_names_ = files.config.has_value();
  if (has_names_) ConfigReader(path, num_ranks()).Read(*files.config, &slots);
  for (TokenId i = 0; i < kNumReserved; ++i) {
    special_[i] = slots[i].special;
    if (reserved_.Add(slots[i].name)) continue;
    throw Error(ErrorCode::kBadModel,
                path + ": added_tokens_decoder: expected different names, found \"" +
                    slots[i].name + "\" for ids " +
                    std::to_string(num_ranks() + *reserved_.Find(slots[i].name)) + " and " +
                    std::to_string(num_ranks() + i) + kFetchAgain);
  }
}

void Tokenizer::IndexSpellings() {
  for (TokenId i = 0; i < kNumReserved; ++i) {
    const std::string_view spelling = reserved_[i];
    starts_spelling_[static_cast<unsigned char>(spelling[0])] = true;
    spelling_lengths_.push_back(spelling.size());
  }
  std::sort(spelling_lengths_.begin(), spelling_lengths_.end(), std::greater<>());
  spelling_lengths_.erase(std::unique(spelling_lengths_.begin(), spelling_lengths_.end()),
                          spelling_lengths_.end());
}

size_t Tokenizer::MatchSpelling(std::string_view text) const {
  if (!starts_spelling_[static_cast<unsigned char>(text[0])]) return 0;
  for (const size_t length : spelling_lengths_) {
    if (length <= text.size() && reserved_.Find(text.substr(0, length))) return length;
  }
  return 0;
}

void Tokenizer::Encode(std::string_view text, std::vector<TokenId>* ids) const {
  TokenizerEncoder(*this, ids).EncodeBytes(text, /*markup=*/false);
}

void Tokenizer::EncodeMarkup(std::string_view text, std::vector<TokenId>* ids) const {
  TokenizerEncoder(*this, ids).EncodeBytes(text, /*markup=*/true);
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  if (id < num_ranks()) return ranks_[id];
  if (IsReserved(id)) return reserved_[id - num_ranks()];
  throw Error(ErrorCode::kUsage, "expected a token id below " + std::to_string(vocab_size()) +
                                     ", found " + std::to_string(id) +
                                     "; are these ids of another model?");
}

std::string Tokenizer::Decode(std::span<const TokenId> ids) const {
  std::string bytes;
  for (const TokenId id : ids) bytes += TokenBytes(id);
  return bytes;
}

std::optional<TokenId> Tokenizer::FindSpecial(std::string_view name) const {
  const auto slot = reserved_.Find(name);
  if (!slot) return std::nullopt;
  return num_ranks() + *slot;
}

void Tokenizer::RequireMarkup() const {
  constexpr std::string_view kMarkers[] = {"<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"};
  TokenId slot = 2;
  for (const std::string_view marker : kMarkers) {
    const std::string_view found = reserved_[slot];
    if (found != marker) {
      throw Error(ErrorCode::kBadModel,
                  PathIn(directory_, kTokenizerConfig) + ": added_tokens_decoder: expected \"" +
                      std::string(marker) + "\" for id " + std::to_string(num_ranks() + slot) +
                      ", found \"" + std::string(found) +
                      "\"; this table belongs to another Kimi model, take the one of Kimi K3");
    }
    ++slot;
  }
}

}  // namespace thimble
