#include "io/read_batch.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "support/expect_error.h"

namespace thimble {
namespace {

TEST(ReadBatch, IsDoneWhenTheLastReadIs) {
  ReadMonitor monitor;
  ReadBatch batch(monitor);
  EXPECT_TRUE(batch.done());
  batch.Await();
  batch.Expect(2);
  batch.Expect(1);
  for (int left = 3; left > 0; --left) {
    EXPECT_FALSE(batch.done());
    batch.Finish("");
  }
  EXPECT_TRUE(batch.done());
  batch.Await();
}

TEST(ReadBatch, ThrowsTheFirstErrorOnce) {
  ReadMonitor monitor;
  ReadBatch batch(monitor);
  batch.Expect(4);
  batch.Finish("");
  batch.Finish("first");
  batch.Finish("second");
  batch.Finish("");
  EXPECT_EQ(ExpectError(ErrorCode::kRuntime, {}, [&] { batch.Await(); }), "first");
  batch.Await();
}

TEST(ReadBatch, WorksAgainAfterAFailure) {
  ReadMonitor monitor;
  ReadBatch batch(monitor);
  for (int round = 0; round < 3; ++round) {
    batch.Expect(1);
    EXPECT_FALSE(batch.done());
    batch.Finish(round == 1 ? "bad" : "");
    if (round == 1) {
      EXPECT_THROW(batch.Await(), Error);
    } else {
      batch.Await();
    }
  }
}

TEST(ReadBatch, CatchesACompletionTooMany) {
  ReadMonitor monitor;
  ReadBatch batch(monitor);
  EXPECT_THROW(batch.Finish(""), Error);
  batch.Expect(1);
  batch.Finish("");
  EXPECT_THROW(batch.Finish(""), Error);
}

TEST(ReadBatch, AwaitsReadsThatOtherThreadsFinish) {
  ReadMonitor monitor;
  for (int round = 0; round < 50; ++round) {
    ReadBatch batch(monitor);
    std::vector<int> written(8);
    batch.Expect(written.size());
    std::vector<std::thread> threads;
    for (int& value : written) {
      threads.emplace_back([&batch, &value, round] {
        value = round;
        batch.Finish("");
      });
    }
    batch.Await();
    EXPECT_EQ(written, std::vector<int>(8, round));
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(ReadBatch, MayBeDestroyedAsSoonAsItIsDone) {
  ReadMonitor monitor;
  std::vector<std::thread> threads;
  for (int round = 0; round < 50; ++round) {
    auto batch = std::make_unique<ReadBatch>(monitor);
    batch->Expect(1);
    threads.emplace_back([raw = batch.get()] { raw->Finish(""); });
    batch->Await();
    batch.reset();
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ReadMonitor, ReturnsWhenAnyOfItsBatchesMakesTheConditionTrue) {
  ReadMonitor monitor;
  ReadBatch first(monitor);
  ReadBatch second(monitor);
  first.Expect(1);
  second.Expect(1);
  // Begins once the monitor has looked for the first time, which it then has to do again.
  std::thread finisher;
  monitor.Await([&] {
    const bool is_over = first.done() || second.done();
    if (!finisher.joinable()) finisher = std::thread([&] { second.Finish(""); });
    return is_over;
  });
  finisher.join();
  EXPECT_FALSE(first.done());
  first.Finish("");
  EXPECT_GT(monitor.waited_seconds(), 0.0);
}

TEST(ReadMonitor, DoesNotCountWhatWasThereAlready) {
  ReadMonitor monitor;
  ReadBatch batch(monitor);
  for (int i = 0; i < 100; ++i) {
    batch.Expect(1);
    batch.Finish("");
    batch.Await();
  }
  EXPECT_EQ(monitor.waited_seconds(), 0.0);
}

}  // namespace
}  // namespace thimble
