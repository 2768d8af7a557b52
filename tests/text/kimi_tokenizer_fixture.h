#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/shared_data.h"
#include "text/tokenizer.h"

namespace thimble {

/// Kimi's rank file and encodings of the official tokenizer.
inline std::filesystem::path SharedData() { return SharedDir() / "data"; }

inline nlohmann::json ReadJson(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

/// Tests against Kimi's own tokenizer, skipped where its files are absent.
class KimiTokenizerTest : public testing::Test {
 protected:
  void SetUp() override { THIMBLE_NEED_SHARED("data/tokenizer/tiktoken.model"); }

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
