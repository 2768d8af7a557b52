#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/token_table.h"

namespace thimble {

/// The contents of a tokenizer's files.
struct TokenizerFiles {
  std::string_view ranks;                  // tiktoken.model
  std::optional<std::string_view> config;  // tokenizer_config.json
  std::string directory;                   // where they came from, for messages
  std::optional<size_t> vocab_size = {};   // of the model; absent: any
};

/// Kimi's tokenizer: text to ids and back.
///
/// The vocabulary is the rank file's n tokens, 0 .. n-1, and 256 reserved slots, n .. n+255. A slot
/// is spelled as the config's added_tokens_decoder says, else `<|reserved_token_{id}|>`; a slot
/// that has a name does not answer to its reserved spelling.
///
/// Immutable after construction: any thread may use it, at the same time. Movable, not copied.
class Tokenizer {
 public:
  static constexpr TokenId kNumReserved = 256;

  /// Reads `tiktoken.model` in `dir` and, if it is there, `tokenizer_config.json`. Throws
  /// Error(kBadModel) where a file is missing or malformed (see ParseRankFile), or where the
  /// vocabulary has not `vocab_size` ids. About 20 ms for 163,584 ranks.
  static Tokenizer Load(const std::filesystem::path& dir,
                        std::optional<size_t> vocab_size = std::nullopt);

  /// The same from memory. Borrows nothing.
  static Tokenizer Parse(const TokenizerFiles& files);

  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  /// Text mode: appends the ids of `text`, none of them reserved, whatever it spells. For
  /// everything that a user or a tool wrote.
  ///
  /// For valid UTF-8 these are the official ids, including its cuts of very long text (slicer.h).
  /// Other bytes survive too: each byte that belongs to no character becomes the token of that
  /// byte, and the text on either side of it is encoded as a text of its own. So decoding always
  /// gives back the exact bytes.
  ///
  /// Does not fail. Linear but for a logarithm in the longest piece; tens of MB/s on English.
  void Encode(std::string_view text, std::vector<TokenId>* ids) const;

  /// Markup mode: as Encode, but every spelling of a reserved slot becomes that slot. Of several
  /// spellings the leftmost wins, of those that start together the longest. Only for text that
  /// Thimble itself wrote or that the user marked as markup.
  void EncodeMarkup(std::string_view text, std::vector<TokenId>* ids) const;

  /// The bytes of all `ids`, reserved slots as they are spelled. They need not be valid UTF-8, see
  /// Utf8Stream. Throws Error(kUsage) for an id that is not in the vocabulary.
  std::string Decode(std::span<const TokenId> ids) const;

  /// The bytes of one token, the spelling of a reserved slot. Valid as long as the tokenizer (moves
  /// included). Throws Error(kUsage) for an id that is not in the vocabulary.
  std::string_view TokenBytes(TokenId id) const;

  TokenId num_ranks() const { return ranks_.size(); }
  TokenId vocab_size() const { return ranks_.size() + kNumReserved; }

  /// Whether `id` is one of the 256 slots. No reserved id may ever reach a reader as text.
  bool IsReserved(TokenId id) const { return id >= num_ranks() && id < vocab_size(); }

  /// Whether `id` is a slot that the config calls special, which decoders may leave out. Not so the
  /// structural markers (open, close, sep), though they are reserved. A slot without a name is
  /// special.
  bool IsSpecial(TokenId id) const { return IsReserved(id) && special_[id - num_ranks()]; }

  /// The slot spelled `name`.
  std::optional<TokenId> FindSpecial(std::string_view name) const;

  /// Whether a tokenizer_config.json gave the names.
  bool has_names() const { return has_names_; }

  /// Checks that the names are those of Kimi K3: `<|end_of_msg|>`, `<|open|>`, `<|close|>` and
  /// `<|sep|>` in slots 2 to 5. Its relatives have the same rank file and other names, and with
  /// theirs a K3 prompt would silently become wrong ids. Throws Error(kBadModel) otherwise. Call it
  /// when model_type is kimi_k3 and has_names().
  void RequireMarkup() const;

  /// What the tables hold of memory, for the memory plan.
  size_t memory_bytes() const { return ranks_.memory_bytes() + reserved_.memory_bytes(); }

 private:
  friend class TokenizerEncoder;

  Tokenizer() = default;

  void CheckVocabulary(size_t expected) const;
  void NameSlots(const TokenizerFiles& files);
  void IndexSpellings();

  /// The length of the reserved spelling at the front of `text`, 0 if there is none.
  size_t MatchSpelling(std::string_view text) const;

  std::string directory_;
  TokenTable ranks_;
  TokenTable reserved_;  // slot n + i is its string i
  std::array<bool, kNumReserved> special_{};
  bool has_names_ = false;
  std::array<bool, 256> starts_spelling_{};  // by first byte
  std::vector<size_t> spelling_lengths_;     // the distinct ones, descending
};

}  // namespace thimble
