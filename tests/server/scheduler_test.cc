#include "server/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/log_sum.h"
#include "server/failing_allocator.h"
#include "server/scripted_backend.h"
#include "support/checkpoint_builder.h"
#include "support/fixed_process.h"
#include "support/temp_dir.h"

namespace thimble::server {
namespace {

using Ids = std::vector<TokenId>;

// A real engine with a model of random weights.
class SchedulerTest : public testing::Test {
 protected:
  SchedulerTest() {
    CheckpointBuilder::KimiK3(CheckpointDims{}).Write(dir_.path());
    model_ = std::make_unique<ModelDirectory>(ModelDirectory::Open(dir_.path()));
  }

  std::unique_ptr<Engine> Open(size_t num_sessions) const {
    EngineOptions options;
    options.memory_bytes = 256'000'000;
    options.process = kFixedProcess;
    options.context = 200;
    options.num_sessions = num_sessions;
    options.num_threads = 1;
    options.prefill_chunk = 16;
    options.snapshot_bytes = kSnapshotBytes;
    return Engine::Open(*model_, options);
  }

  static Ids Prompt(size_t length, size_t first) {
    Ids ids;
    for (size_t i = 0; i < length; ++i) ids.push_back(static_cast<TokenId>((first + 5 * i) % 96));
    return ids;
  }
  static std::shared_ptr<Job> NewJob(const Ids& prompt, size_t max_tokens, uint64_t seed = 0) {
    JobRequest request;
    request.prompt = prompt;
    request.max_tokens = max_tokens;
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    return std::make_shared<Job>(request);
  }
  static Ids AwaitEnd(Job& job, Job::Update* last = nullptr) {
    Ids ids;
    while (true) {
      const Job::Update update = Await(job);
      for (const SampledToken& token : update.tokens) ids.push_back(token.id);
      if (last != nullptr) *last = update;
      if (update.ended) return ids;
    }
  }
  // By hand, one session and one token at a time.
  Ids Alone(const Ids& prompt, size_t max_tokens, uint64_t seed) const {
    const auto engine = Open(1);
    Session session(*engine);
    SamplingOptions options;
    options.temperature = 1;
    options.seed = seed;
    Sampler sampler = engine->NewSampler(options);
    session.Append(prompt, nullptr);
    Ids history = prompt;
    for (size_t i = 0; i < max_tokens; ++i) {
      if (i > 0) session.Append({&history.back(), 1}, nullptr);
      history.push_back(sampler.Sample(session.logits(), history, prompt.size()));
    }
    return {history.begin() + static_cast<ptrdiff_t>(prompt.size()), history.end()};
  }
  static double Metric(const Scheduler& scheduler, const std::string& name) {
    for (const auto& [key, value] : scheduler.Metrics()) {
      if (key == name) return value;
    }
    return 0;
  }

  static constexpr uint64_t kSnapshotBytes = 4'000'000;
  TempDir dir_;
  std::unique_ptr<ModelDirectory> model_;
};

TEST_F(SchedulerTest, JobsTogetherMakeTheTextOfEachAlone) {
  for (const size_t count : {2u, 4u, 8u}) {
    const auto engine = Open(count);
    Scheduler scheduler(*engine, {count, 32, kSnapshotBytes});
    std::vector<std::shared_ptr<Job>> jobs;
    for (size_t i = 0; i < count; ++i) {
      jobs.push_back(NewJob(Prompt(3 + 13 * i, i), 10 + i, i));
      ASSERT_TRUE(scheduler.Submit(jobs.back()));
    }
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(AwaitEnd(*jobs[i]), Alone(Prompt(3 + 13 * i, i), 10 + i, i))
          << i << " of " << count;
    }
  }
}

TEST_F(SchedulerTest, SweepsAreShared) {
  const auto engine = Open(4);
  Scheduler scheduler(*engine, {4, 32, 0});
  std::vector<std::shared_ptr<Job>> jobs;
  for (size_t i = 0; i < 4; ++i) jobs.push_back(NewJob(Prompt(4, i), 60, i));
  for (const auto& job : jobs) scheduler.Submit(job);
  for (const auto& job : jobs) EXPECT_EQ(AwaitEnd(*job).size(), 60u);
  // Alone, each would take 60; some may pass before the last job is there.
  EXPECT_LT(Metric(scheduler, "thimble_sweeps_total"), 180);
  EXPECT_EQ(Metric(scheduler, "thimble_tokens_generated_total"), 240);
}

TEST_F(SchedulerTest, ASecondTurnComputesOnlyWhatIsNew) {
  const auto engine = Open(2);
  Scheduler scheduler(*engine, {2, 32, kSnapshotBytes});
  const Ids first = Prompt(100, 1);
  const auto turn = NewJob(first, 8, 5);
  scheduler.Submit(turn);
  const Ids answer = AwaitEnd(*turn);
  const double computed = Metric(scheduler, "thimble_tokens_computed_total");
  EXPECT_EQ(computed, 107);

  // The same answer again: nothing of the prompt is computed.
  Job::Update update;
  const auto again = NewJob(first, 8, 5);
  scheduler.Submit(again);
  EXPECT_EQ(AwaitEnd(*again, &update), answer);
  EXPECT_EQ(update.cached_tokens, 100u);
  EXPECT_EQ(Metric(scheduler, "thimble_tokens_computed_total"), computed + 7);

  Ids second = first;
  second.insert(second.end(), answer.begin(), answer.end());
  const Ids more = Prompt(12, 3);
  second.insert(second.end(), more.begin(), more.end());
  const auto next = NewJob(second, 1, 6);
  scheduler.Submit(next);
  EXPECT_EQ(AwaitEnd(*next, &update), Alone(second, 1, 6));
  EXPECT_EQ(update.cached_tokens, 107u);
  EXPECT_EQ(Metric(scheduler, "thimble_tokens_computed_total"), computed + 7 + 13);
}

TEST_F(SchedulerTest, CancelledWorkStopsAndOthersGoOn) {
  const auto engine = Open(2);
  Scheduler scheduler(*engine, {2, 32, kSnapshotBytes});
  const auto doomed = NewJob(Prompt(20, 1), 180, 1);
  const auto other = NewJob(Prompt(5, 2), 40, 2);
  scheduler.Submit(doomed);
  scheduler.Submit(other);
  ASSERT_TRUE(WaitFor([&] { return !doomed->Take().tokens.empty(); }));
  doomed->Cancel();
  EXPECT_EQ(AwaitEnd(*other), Alone(Prompt(5, 2), 40, 2));
  Job::Update update;
  AwaitEnd(*doomed, &update);
  EXPECT_EQ(update.reason, FinishReason::kInterrupted);
  // Its session serves again.
  const auto next = NewJob(Prompt(20, 1), 5, 1);
  scheduler.Submit(next);
  EXPECT_EQ(AwaitEnd(*next), Alone(Prompt(20, 1), 5, 1));
}

// Whatever allocation fails on the engine's thread, those jobs fail that it was for, and the next
// ones are computed as ever.
TEST_F(SchedulerTest, SurvivesWhenMemoryRunsOut) {
  const auto engine = Open(2);
  Scheduler scheduler(*engine, {2, 32, kSnapshotBytes});
  size_t num_failed = 0;
  for (size_t count = 1; count <= 12; ++count) {
    const auto doomed = NewJob(Prompt(20, count), 40, 1);
    std::atomic<bool> failing = false;
    doomed->OnChange([&, count] {
      if (!failing.exchange(true)) FailAllocations(count);
    });
    ASSERT_TRUE(scheduler.Submit(doomed));
    Job::Update update;
    AwaitEnd(*doomed, &update);
    num_failed += update.error.empty() ? 0 : 1;
    EXPECT_TRUE(update.error.empty() || update.error == "out of memory") << update.error;
    doomed->OnChange(nullptr);
    const auto next = NewJob(Prompt(5, count), 5, 2);
    ASSERT_TRUE(scheduler.Submit(next));
    AwaitEnd(*next, &update);
    // The rest of the failures may still have been due.
    if (!update.error.empty()) continue;
    const auto last = NewJob(Prompt(5, count), 5, 2);
    ASSERT_TRUE(scheduler.Submit(last));
    EXPECT_EQ(AwaitEnd(*last), Alone(Prompt(5, count), 5, 2));
  }
  EXPECT_GT(num_failed, 0u);
}

TEST_F(SchedulerTest, AFaultThatIsNoErrorOfThimbleFailsItsJobAlone) {
  const auto engine = Open(2);
  Scheduler scheduler(*engine, {2, 32, 0});
  const auto other = NewJob(Prompt(5, 2), 40, 2);
  scheduler.Submit(other);
  // More tokens than a vector can hold: std::length_error.
  const auto doomed = NewJob(Prompt(5, 1), std::numeric_limits<size_t>::max() - 100, 1);
  scheduler.Submit(doomed);
  Job::Update update;
  EXPECT_TRUE(AwaitEnd(*doomed, &update).empty());
  EXPECT_NE(update.error, "");
  EXPECT_EQ(AwaitEnd(*other), Alone(Prompt(5, 2), 40, 2));
}

TEST_F(SchedulerTest, TheQueueHasABoundAndKeepsItsOrder) {
  const auto engine = Open(1);
  Scheduler scheduler(*engine, {1, 2, 0});
  const auto running = NewJob(Prompt(5, 1), 150, 1);
  scheduler.Submit(running);
  ASSERT_TRUE(WaitFor([&] { return !running->Take().tokens.empty(); }));
  const auto second = NewJob(Prompt(5, 2), 3);
  const auto third = NewJob(Prompt(5, 3), 3);
  EXPECT_TRUE(scheduler.Submit(second));
  EXPECT_TRUE(scheduler.Submit(third));
  EXPECT_FALSE(scheduler.Submit(NewJob(Prompt(5, 4), 3)));
  running->Cancel();
  EXPECT_EQ(AwaitEnd(*third).size(), 3u);
  EXPECT_TRUE(second->Take().ended);
}

TEST_F(SchedulerTest, ProbabilitiesAreThoseOfTheLogits) {
  const auto engine = Open(1);
  Scheduler scheduler(*engine, {1, 2, 0});
  JobRequest request;
  request.prompt = Prompt(5, 1);
  request.max_tokens = 1;
  request.top_logprobs = 96;
  const auto job = std::make_shared<Job>(request);
  scheduler.Submit(job);
  const Job::Update update = Await(*job, 5000);
  ASSERT_EQ(update.tokens.size(), 1u);
  const SampledToken& token = update.tokens[0];
  ASSERT_EQ(token.top.size(), 96u);
  EXPECT_EQ(token.top[0].id, token.id);  // temperature 0
  EXPECT_EQ(token.top[0].logprob, token.logprob);
  double sum = 0;
  for (const TokenLogprob& top : token.top) sum += std::exp(top.logprob);
  EXPECT_NEAR(sum, 1, 1e-5);
}

// As evaluation does it: the probability of each token by the logits after those before it.
TEST_F(SchedulerTest, ProbabilitiesOfAPromptAreThoseOfItsTokensOneByOne) {
  const Ids prompt = Prompt(45, 1);
  std::vector<double> expected;
  {
    const auto engine = Open(1);
    Session session(*engine);
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      session.Append({&prompt[i], 1}, nullptr);
      expected.push_back(static_cast<double>(session.logits()[prompt[i + 1]]) -
                         LogSumExp(session.logits()));
    }
  }
  const auto engine = Open(2);
  // Fewer rows than a sweep has tokens, and shared by two jobs.
  Scheduler scheduler(*engine, {2, 32, kSnapshotBytes, 7});
  for (const size_t max_tokens : {0u, 3u, 1u}) {
    JobRequest request;
    request.prompt = prompt;
    request.max_tokens = max_tokens;
    request.top_logprobs = 1;
    request.prompt_logprobs = 1;
    const auto job = std::make_shared<Job>(request);
    const auto beside = std::make_shared<Job>(request);
    scheduler.Submit(job);
    scheduler.Submit(beside);
    for (Job* each : {job.get(), beside.get()}) {
      std::vector<SampledToken> tokens;
      size_t num_made = 0;
      Job::Update update;
      const auto ended = [&] {
        update = each->Take();
        tokens.insert(tokens.end(), update.prompt_tokens.begin(), update.prompt_tokens.end());
        num_made += update.tokens.size();
        return update.ended;
      };
      ASSERT_TRUE(WaitFor(ended, 10'000));
      EXPECT_EQ(update.error, "");
      EXPECT_EQ(num_made, max_tokens);
      ASSERT_EQ(tokens.size(), prompt.size());
      EXPECT_FALSE(tokens[0].has_logprob);
      for (size_t i = 0; i < prompt.size(); ++i) {
        EXPECT_EQ(tokens[i].id, prompt[i]);
        if (i == 0) continue;
        EXPECT_EQ(tokens[i].logprob, expected[i - 1]) << i;
      }
      EXPECT_EQ(update.cached_tokens, 0u);
    }
  }
}

TEST_F(SchedulerTest, DrainingEndsWhatRunsAsIfCut) {
  const auto engine = Open(1);
  Scheduler scheduler(*engine, {1, 2, 0});
  const auto running = NewJob(Prompt(5, 1), 190, 1);
  const auto waiting = NewJob(Prompt(5, 2), 3);
  scheduler.Submit(running);
  ASSERT_TRUE(WaitFor([&] { return !running->Take().tokens.empty(); }));
  scheduler.Submit(waiting);
  scheduler.Drain();
  Job::Update update;
  AwaitEnd(*running, &update);
  EXPECT_EQ(update.reason, FinishReason::kLength);
  AwaitEnd(*waiting, &update);
  EXPECT_NE(update.error, "");
  EXPECT_FALSE(scheduler.Submit(NewJob(Prompt(5, 4), 3)));
}

}  // namespace
}  // namespace thimble::server
