#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/sanitizers.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using Json = nlohmann::json;

const std::filesystem::path kMini = THIMBLE_SOURCE_DIR "/models/mini";

Json ReadJson(const std::filesystem::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

// The ids of a text in which the spellings of special tokens count.
std::string MarkupIds(const std::string& text) {
  std::string ids = Program::Run({"tokenize", "--markup"}, text).out;
  ids.pop_back();  // the newline
  return ids;
}

TEST(EmbeddedModelTest, FitsTheRepository) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kMini)) bytes += entry.file_size();
  EXPECT_LE(bytes, 16'000'000U);
}

TEST(EmbeddedModelTest, HasEveryPartOfKimiK3) {
  const Json json = Json::parse(Program::Run({"inspect", "--json"}).out);
  EXPECT_EQ(json["architecture"], "Kimi K3");
  for (const char* kind : {"kda_layers", "mla_layers", "dense_layers", "moe_layers"}) {
    EXPECT_GT(json[kind], 0) << kind;
  }
  EXPECT_GE(json["experts"], 32);
  EXPECT_EQ(json["experts_per_token"], 4);
  for (const auto& [name, part] : json["parts"].items()) EXPECT_GT(part["bytes"], 0) << name;
}

TEST(EmbeddedModelTest, RunWithoutAModelWritesWordsOfEnglish) {
  const std::vector<std::string> command = {
      "run", "-p", "In the beginning", "-n", "60", "--temp", "0.8", "-s", "1"};
  const auto result = Program::Run(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto letters = std::count_if(result.out.begin(), result.out.end(), [](unsigned char c) {
    return std::isalpha(c) || std::isspace(c);
  });
  EXPECT_GT(letters, 9 * static_cast<long>(result.out.size()) / 10) << result.out;
  EXPECT_THAT(result.out, ::testing::HasSubstr(" the "));
  EXPECT_EQ(Program::Run(command).out, result.out);
}

// It was trained on dialogues, so it opens and closes its channels and ends its message by itself.
TEST(EmbeddedModelTest, AnswersInItsChannelsAndStops) {
  for (const char* question :
       {"Thank you", "Hello", "Who are you?", "What is the capital of France?",
        "Which book has the words \"the white whale\"?"}) {
    SCOPED_TRACE(question);
    const std::string prompt = std::string("<|open|>message role=\"user\"<|sep|>") + question +
                               "<|close|>message<|sep|><|end_of_msg|>"
                               "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>";
    const auto result = Program::Run({"run", "--ids", MarkupIds(prompt), "-n", "300", "--out-ids"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string text = Program::Run({"detokenize"}, result.out).out;
    EXPECT_THAT(text, ::testing::HasSubstr("<|close|>think<|sep|><|open|>response<|sep|>"));
    EXPECT_THAT(
        text, ::testing::EndsWith("<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"));
  }
}

TEST(EmbeddedModelTest, BitsPerByteEqualThoseOfTheTrainingCode) {
  if (kSanitized) GTEST_SKIP() << "a minute's work without sanitizers, many with them";
  const double trained = ReadJson(kMini / "figures.json")["heldout_bits_per_byte"];
  const auto result = Program::Run({"eval", "-f", (kMini / "heldout.txt").string(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const double found = Json::parse(result.out)["bits_per_byte"];
  EXPECT_LT(found, 2.0);
  EXPECT_NEAR(found, trained, 0.0005);
}

}  // namespace
}  // namespace thimble
