#include "engine/generation.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/silent_listener.h"
#include "support/small_ranks.h"
#include "support/temp_dir.h"
#include "text/utf8_stream.h"

namespace thimble {
namespace {

// A model of random weights whose vocabulary is the 256 bytes and the reserved slots: it talks
// nonsense, and much of it is no UTF-8.
class GenerationTest : public ::testing::Test {
 protected:
  GenerationTest() { Write(kNoId); }

  // Generation would end at `eos`.
  void Write(uint32_t eos) {
    CheckpointDims dims;
    dims.vocab = 512;
    CheckpointBuilder builder = CheckpointBuilder::KimiK3(dims);
    builder.config()["eos_token_id"] = eos;
    builder.Write(dir_.path());
    WriteText(dir_ / "tiktoken.model", SmallRankFile({}));
    model_ = std::make_unique<ModelDirectory>(ModelDirectory::Open(dir_.path()));
  }

  GenerationResult Run(const GenerationOptions& options, SilentListener& listener,
                       size_t context = 200) {
    EngineOptions engine_options;
    engine_options.context = context;
    const auto engine = Engine::Open(*model_, engine_options);
    Session session(*engine);
    return Generate(session, prompt_, options, listener);
  }

  static GenerationOptions Sampled(size_t max_tokens) {
    GenerationOptions options;
    options.max_tokens = max_tokens;
    options.sampling.temperature = 1;
    options.sampling.seed = 3;
    return options;
  }

  static constexpr uint32_t kNoId = 511;  // a slot that these weights do not choose below
  TempDir dir_;
  std::unique_ptr<ModelDirectory> model_;
  const std::vector<TokenId> prompt_ = {'I', 'n', ' ', 't', 'h', 'e'};
};

bool IsUtf8(std::string_view text) {
  std::string decoded;
  Utf8Stream stream;
  stream.Feed(text, &decoded);
  return !stream.pending() && decoded == text;
}

TEST_F(GenerationTest, TextComesInWholeCharactersAndLosesNothing) {
  SilentListener listener;
  const GenerationResult result = Run(Sampled(120), listener);
  ASSERT_EQ(result.ids.size(), 120U);
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(listener.ids, result.ids);
  for (const std::string& piece : listener.pieces) EXPECT_TRUE(IsUtf8(piece)) << piece;
  std::string expected;
  Utf8Stream stream;
  for (const TokenId id : result.ids) {
    if (model_->tokenizer->IsReserved(id)) {
      stream.Flush(&expected);
    } else {
      stream.Feed(model_->tokenizer->TokenBytes(id), &expected);
    }
  }
  stream.Flush(&expected);
  EXPECT_EQ(listener.text, expected);
}

TEST_F(GenerationTest, TheSameSeedGivesTheSameText) {
  SilentListener first;
  SilentListener second;
  SilentListener other;
  Run(Sampled(40), first);
  Run(Sampled(40), second);
  GenerationOptions options = Sampled(40);
  options.sampling.seed = 4;
  Run(options, other);
  EXPECT_EQ(first.ids, second.ids);
  EXPECT_NE(first.ids, other.ids);
}

TEST_F(GenerationTest, AStopStringEndsTheTextBeforeIt) {
  SilentListener whole;
  Run(Sampled(120), whole);
  ASSERT_GT(whole.text.size(), 60U);
  // From the start of a character to the start of another.
  const auto boundary = [&](size_t at) {
    while ((static_cast<unsigned char>(whole.text[at]) & 0xC0) == 0x80) ++at;
    return at;
  };
  const size_t from = boundary(40);
  const std::string stop = whole.text.substr(from, boundary(from + 4) - from);
  GenerationOptions options = Sampled(120);
  options.stop_strings = {"never in this text", stop};
  SilentListener listener;
  const GenerationResult result = Run(options, listener);
  EXPECT_EQ(result.reason, FinishReason::kStop);
  EXPECT_EQ(listener.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_LT(result.ids.size(), 120U);
}

TEST_F(GenerationTest, AStopIdEndsItAndIsNotShown) {
  SilentListener whole;
  Run(Sampled(60), whole);
  const TokenId last = whole.ids[30];
  const auto first_at = std::find(whole.ids.begin(), whole.ids.end(), last) - whole.ids.begin();
  Write(last);
  SilentListener listener;
  const GenerationResult result = Run(Sampled(60), listener);
  EXPECT_EQ(result.reason, FinishReason::kStop);
  ASSERT_EQ(result.ids.size(), static_cast<size_t>(first_at) + 1);
  EXPECT_EQ(result.ids.back(), last);
  EXPECT_TRUE(IsUtf8(listener.text));
}

TEST_F(GenerationTest, NoTokensAskedForMeansNone) {
  SilentListener listener;
  const GenerationResult result = Run(Sampled(0), listener);
  EXPECT_TRUE(result.ids.empty());
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(listener.progress.back(), prompt_.size());
}

TEST_F(GenerationTest, AFullContextEndsIt) {
  SilentListener listener;
  const GenerationResult result = Run(Sampled(100), listener, prompt_.size() + 5);
  EXPECT_EQ(result.reason, FinishReason::kContext);
  // The last token needs no room: nothing is computed after it.
  EXPECT_EQ(result.ids.size(), 6U);
}

TEST_F(GenerationTest, AnInterruptKeepsWhatWasMade) {
  SilentListener whole;
  Run(Sampled(30), whole);
  SilentListener listener;
  listener.stop_after = 7;
  const GenerationResult result = Run(Sampled(30), listener);
  EXPECT_EQ(result.reason, FinishReason::kInterrupted);
  ASSERT_EQ(result.ids.size(), 7U);
  EXPECT_TRUE(std::equal(result.ids.begin(), result.ids.end(), whole.ids.begin()));
}

TEST_F(GenerationTest, AnEmptyPromptIsRefused) {
  EngineOptions options;
  options.context = 8;
  const auto engine = Engine::Open(*model_, options);
  Session session(*engine);
  SilentListener listener;
  ExpectError(ErrorCode::kUsage, {"prompt is empty"},
              [&] { Generate(session, {}, Sampled(4), listener); });
}

TEST_F(GenerationTest, APromptBeyondTheContextIsRefused) {
  SilentListener listener;
  ExpectError(ErrorCode::kUsage, {"raise -c"},
              [&] { Run(Sampled(4), listener, prompt_.size() - 1); });
}

TEST_F(GenerationTest, VocabulariesOfDifferentSizesAreRefused) {
  WriteText(dir_ / "tiktoken.model", SmallRankFile({"th"}));
  ExpectBadModel({"513", "512", "vocab_size"}, [&] { ModelDirectory::Open(dir_.path()); });
}

}  // namespace
}  // namespace thimble
