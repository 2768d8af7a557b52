#include "engine/model_directory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "format/model_files.h"

namespace thimble {

ModelDirectory ModelDirectory::Open(const std::filesystem::path& path) {
  ModelDirectory model = {path, ReadModelConfig(path), std::nullopt};
  if (!FileExists(path / "tiktoken.model")) return model;
  model.tokenizer = Tokenizer::Load(path, model.config.vocab_size);
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
    throw Error(
        ErrorCode::kBadModel,
        fmt::format("{} has no tiktoken.model, which text needs; download it, or give token "
                    "ids with --ids and --out-ids",
                    path.string()));
  }
  return *tokenizer;
}

}  // namespace thimble
