#include "dialogue/conversation.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

const std::filesystem::path kMini = THIMBLE_SOURCE_DIR "/models/mini";

// Collects an answer; interrupts or fails where it is told to.
struct Listener : ConversationListener {
  bool OnLayer(size_t) override {
    if (fails) throw std::runtime_error("the drive is gone");
    return true;
  }
  bool Continue() override { return true; }
  bool OnPause() override { return num_tokens < max_tokens && !interrupts; }
  void OnProgress(size_t, size_t) override {}
  void OnToken(ReplyChannel) override { ++num_tokens; }
  void OnReasoning(std::string_view text) override { reasoning += text; }
  void OnContent(std::string_view text) override { content += text; }

  bool fails = false;
  bool interrupts = false;  // between the chunks of a prompt, and the tokens of an answer
  size_t max_tokens = SIZE_MAX;
  size_t num_tokens = 0;
  std::string reasoning;
  std::string content;
};

class ConversationTest : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Conversation> Open(size_t max_tokens, size_t context = 600) {
    EngineOptions options;
    options.num_threads = 1;
    options.context = context;
    options.prefill_chunk = 8;
    engines_.push_back(Engine::Open(model_, options));
    ConversationOptions conversation;
    conversation.effort = GetParam();
    conversation.max_tokens = max_tokens;
    conversation.sampling.temperature = 1;
    conversation.sampling.seed = seed_;
    return std::make_unique<Conversation>(*engines_.back(), 0, conversation);
  }

  const ModelDirectory model_ = ModelDirectory::Open(kMini);
  std::vector<std::unique_ptr<Engine>> engines_;
  uint64_t seed_ = 3;
};

TEST_P(ConversationTest, AContinuedAnswerIsTheOneThatWasNeverCut) {
  Listener whole;
  std::unique_ptr<Conversation> uncut;
  for (FinishReason reason = FinishReason::kStop; reason != FinishReason::kLength; ++seed_) {
    ASSERT_LT(seed_, 30U) << "no answer is long enough";
    whole = {};
    uncut = Open(64);
    reason = uncut->Say("Who was he?", whole).reason;
  }
  --seed_;
  const std::string answer = uncut->answer(0);
  const size_t num_tokens = uncut->num_tokens();

  Listener parts;
  TempDir dir;
  const auto cut = Open(16);
  cut->Say("Who was he?", parts);
  cut->Continue(parts);
  parts.max_tokens = 40;  // as Ctrl-C does
  EXPECT_EQ(cut->Continue(parts).reason, FinishReason::kInterrupted);
  parts.max_tokens = SIZE_MAX;
  cut->Save(dir / "session");
  cut->Reset();
  cut->Load(dir / "session");
  cut->Continue(parts);
  parts.max_tokens = 64;
  cut->Continue(parts);
  EXPECT_EQ(cut->answer(0), answer);
  EXPECT_EQ(parts.reasoning, whole.reasoning);
  EXPECT_EQ(parts.content, whole.content);
  EXPECT_EQ(cut->num_tokens(), num_tokens);
  EXPECT_EQ(cut->num_turns(), 1U);
}

TEST_P(ConversationTest, OnlyACutAnswerIsContinued) {
  Listener listener;
  const auto conversation = Open(500);
  ExpectError(ErrorCode::kUsage, {"no answer"}, [&] { conversation->Continue(listener); });
  while (conversation->Say("And then?", listener).reason != FinishReason::kStop) {
    ASSERT_LT(conversation->num_turns(), 20U) << "no answer ends by itself";
  }
  EXPECT_FALSE(conversation->is_cut());
  ExpectError(ErrorCode::kUsage, {"complete"}, [&] { conversation->Continue(listener); });
}

// The context is full, so that the next message costs the oldest turns.
class FullConversationTest : public ConversationTest {
 protected:
  FullConversationTest() {
    Listener listener;
    conversation_ = Open(30, 300);
    while (conversation_->Say(Message(), listener).dropped_turns == 0) {
    }
    conversation_->Say(Message(), listener);
    for (size_t i = 0; i < conversation_->num_turns(); ++i) {
      before_ += conversation_->user(i) + conversation_->answer(i);
    }
    num_tokens_ = conversation_->num_tokens();
  }
  std::string Message() { return "Tell me of the sea, part " + std::to_string(++count_); }
  void ExpectAsBefore() const {
    std::string now;
    for (size_t i = 0; i < conversation_->num_turns(); ++i) {
      now += conversation_->user(i) + conversation_->answer(i);
    }
    EXPECT_EQ(now, before_);
    EXPECT_EQ(conversation_->num_tokens(), num_tokens_);
  }

  int count_ = 0;
  std::unique_ptr<Conversation> conversation_;
  std::string before_;
  size_t num_tokens_ = 0;
};

TEST_P(FullConversationTest, AnInterruptedPromptCostsNoTurn) {
  Listener interrupting;
  interrupting.interrupts = true;
  const AnswerReport report = conversation_->Say(Message(), interrupting);
  EXPECT_FALSE(report.answered);
  EXPECT_EQ(report.dropped_turns, 0U);
  ExpectAsBefore();
  EXPECT_FALSE(conversation_->Regenerate(interrupting).answered);
  ExpectAsBefore();
}

TEST_P(FullConversationTest, AFailedAnswerCostsNoTurn) {
  Listener failing;
  failing.fails = true;
  EXPECT_THROW(conversation_->Say(Message(), failing), std::runtime_error);
  ExpectAsBefore();
  EXPECT_THROW(conversation_->Regenerate(failing), std::runtime_error);
  ExpectAsBefore();
  failing.fails = false;
  EXPECT_TRUE(conversation_->Say(Message(), failing).answered);
}

TEST_P(FullConversationTest, AnAnswerThatFillsTheContextIsContinuedByDroppingTurns) {
  Listener listener;
  while (!conversation_->is_cut()) conversation_->Say(Message(), listener);
  const std::string begun = conversation_->answer(conversation_->num_turns() - 1);
  const AnswerReport report = conversation_->Continue(listener);
  EXPECT_TRUE(report.answered);
  EXPECT_TRUE(conversation_->answer(conversation_->num_turns() - 1).starts_with(begun));
}

TEST_P(ConversationTest, AMessageMayWaitForItsAnswer) {
  Listener listener;
  const auto conversation = Open(12);
  conversation->Say("Who was he?", listener);
  conversation->Say("And then?", listener);
  const std::string expected = conversation->answer(1);

  const auto waiting = Open(12);
  waiting->Say("Who was he?", listener);
  waiting->Ask("And then?");
  TempDir dir;
  waiting->Save(dir / "session");
  waiting->Load(dir / "session");
  EXPECT_TRUE(waiting->is_cut());
  EXPECT_EQ(waiting->answer(1), "");
  waiting->Continue(listener);
  EXPECT_EQ(waiting->answer(1), expected);
}

INSTANTIATE_TEST_SUITE_P(Effort, ConversationTest, testing::Values("", "low"));
INSTANTIATE_TEST_SUITE_P(Effort, FullConversationTest, testing::Values(""));

}  // namespace
}  // namespace thimble
