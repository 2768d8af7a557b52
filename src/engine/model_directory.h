#pragma once

#include <filesystem>
#include <optional>

#include "format/model_config.h"
#include "text/tokenizer.h"

namespace thimble {

/// The small files of a model: everything except its weights.
struct ModelDirectory {
  std::filesystem::path path;
  ModelConfig config;
  std::optional<Tokenizer> tokenizer;  // absent if there is no tiktoken.model

  /// Error(kBadModel) if the configuration or the tokenizer is damaged, if the vocabularies differ
  /// in size, or if a Kimi K3 model comes with another model's special tokens.
  static ModelDirectory Open(const std::filesystem::path& path);

  /// Ids at which generation ends: those of the configuration, and the tokenizer's [EOS].
  std::vector<TokenId> StopIds() const;

  /// The tokenizer, or Error(kBadModel) saying that the model needs one for text.
  const Tokenizer& RequireTokenizer() const;
};

}  // namespace thimble
