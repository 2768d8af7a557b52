#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer.h"

namespace thimble {

/// Files that the repository does not carry, because they are other people's: Kimi's rank file and
/// encodings of the official tokenizer. $THIMBLE_SHARED, else ../shared beside the source tree.
inline std::filesystem::path SharedData() {
  if (const char* dir = std::getenv("THIMBLE_SHARED")) return std::filesystem::path(dir) / "data";
  return std::filesystem::path(THIMBLE_SOURCE_DIR) / ".." / "shared" / "data";
}

inline nlohmann::json ReadJson(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

/// Tests against Kimi's own tokenizer, skipped where its files are absent.
class KimiTokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto rank_file = SharedData() / "tokenizer" / "tiktoken.model";
    if (!std::filesystem::exists(rank_file)) {
      GTEST_SKIP() << "needs Kimi's tokenizer, and there is no " << rank_file
                   << "; set THIMBLE_SHARED to the folder that holds data/tokenizer";
    }
  }

  /// Loaded once for all tests.
  static const Tokenizer& Kimi() {
    static const Tokenizer tokenizer = Tokenizer::Load(SharedData() / "tokenizer");
    return tokenizer;
  }

  static std::vector<TokenId> Encode(std::string_view text) {
    std::vector<TokenId> ids;
    Kimi().Encode(text, &ids);
    return ids;
  }

  static std::vector<TokenId> EncodeMarkup(std::string_view text) {
    std::vector<TokenId> ids;
    Kimi().EncodeMarkup(text, &ids);
    return ids;
  }
};

}  // namespace thimble
