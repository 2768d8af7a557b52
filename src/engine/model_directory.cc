#include "engine/model_directory.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace thimble {

ModelDirectory ModelDirectory::Open(const std::filesystem::path& path) {
  ModelDirectory model = {path, ReadModelConfig(path), std::nullopt};
  if (!std::filesystem::exists(path / "tiktoken.model")) return model;
  model.tokenizer = Tokenizer::Load(path);
  if (model.tokenizer->vocab_size() != model.config.vocab_size) {
    throw Error(ErrorCode::kBadModel,
                path.string() + ": tiktoken.model gives " +
                    std::to_string(model.tokenizer->vocab_size()) + " ids, expected " +
                    std::to_string(model.config.vocab_size) +
                    " (vocab_size of config.json); the two belong to different models");
  }
  if (model.config.architecture == Architecture::kKimiK3 && model.tokenizer->has_names()) {
    model.tokenizer->RequireMarkup();
  }
  return model;
}

std::vector<TokenId> ModelDirectory::StopIds() const {
  std::vector<TokenId> ids = config.eos_ids;
  if (tokenizer) {
    const auto end = tokenizer->FindSpecial("[EOS]");
    if (end && std::find(ids.begin(), ids.end(), *end) == ids.end()) ids.push_back(*end);
  }
  return ids;
}

const Tokenizer& ModelDirectory::RequireTokenizer() const {
  if (!tokenizer) {
    throw Error(ErrorCode::kBadModel,
                path.string() +
                    " has no tiktoken.model, which text needs; download it, or "
                    "give token ids with --ids and --out-ids");
  }
  return *tokenizer;
}

}  // namespace thimble
