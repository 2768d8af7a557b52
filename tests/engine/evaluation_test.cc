#include "engine/evaluation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

class EvaluationTest : public ::testing::Test {
 protected:
  EvaluationTest() {
    CheckpointBuilder::KimiK3().Write(dir_.path());
    model_ = std::make_unique<ModelDirectory>(ModelDirectory::Open(dir_.path()));
    for (TokenId i = 0; i < 41; ++i) tokens_.push_back((i * 29 + 3) % 96);
  }
  std::unique_ptr<Engine> Open(size_t window) const {
    EngineOptions options;
    options.context = window;
    options.all_logits = true;
    return Engine::Open(*model_, options);
  }

  TempDir dir_;
  std::unique_ptr<ModelDirectory> model_;
  std::vector<TokenId> tokens_;
};

bool GoOn(size_t, size_t) { return true; }

// The definition, token by token: each predicted from its own window's start.
TEST_F(EvaluationTest, ScoresEveryTokenButTheFirstOnce) {
  constexpr size_t kWindow = 16;
  const auto engine = Open(kWindow);
  double nats = 0;
  for (size_t target = 1; target < tokens_.size(); ++target) {
    const size_t start = (target - 1) / kWindow * kWindow;
    Session session(*engine);
    session.Append(std::span(tokens_).subspan(start, target - start), nullptr);
    const auto logits = session.logits();
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    nats += std::log(sum) - static_cast<double>(logits[tokens_[target]]);
  }
  const EvaluationResult result = Evaluate(*engine, tokens_, kWindow, GoOn);
  EXPECT_EQ(result.num_tokens, tokens_.size() - 1);
  EXPECT_NEAR(result.nats, nats, 1e-9 * nats);
  EXPECT_NEAR(result.PerplexityPerToken(), std::exp(nats / 40), 1e-6);
  EXPECT_NEAR(result.BitsPerByte(120), nats / std::log(2.0) / 120, 1e-9);
}

TEST_F(EvaluationTest, OneTokenIsTooFew) {
  const auto engine = Open(16);
  ExpectError(ErrorCode::kUsage, {"at least 2"},
              [&] { Evaluate(*engine, std::span(tokens_).first(1), 16, GoOn); });
}

TEST_F(EvaluationTest, ItCanBeStopped) {
  const auto engine = Open(16);
  ExpectError(ErrorCode::kInterrupted, {}, [&] {
    Evaluate(*engine, tokens_, 16, [](size_t done, size_t) { return done < 16; });
  });
}

}  // namespace
}  // namespace thimble
