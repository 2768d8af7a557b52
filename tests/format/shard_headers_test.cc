#include "format/shard_headers.h"

#include <gtest/gtest.h>

#include <string>

#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

class ShardHeadersTest : public ::testing::TestWithParam<size_t> {
 protected:
  ShardHeadersTest() : pool_(GetParam()) {
    CheckpointBuilder::KimiK3().Write(dir_.path());
    for (size_t i = 1; i <= 6; ++i) {
      paths_.push_back(dir_ / ("model-0000" + std::to_string(i) + "-of-000006.safetensors"));
    }
  }

  TempDir dir_;
  ThreadPool pool_;
  std::vector<std::filesystem::path> paths_;
};

TEST_P(ShardHeadersTest, ComeInTheOrderOfThePathsAsOneByOne) {
  const std::vector<ShardHeader> headers = ReadShardHeaders(paths_, pool_);
  ASSERT_EQ(headers.size(), paths_.size());
  for (size_t i = 0; i < paths_.size(); ++i) {
    EXPECT_EQ(headers[i].path, paths_[i]);
    EXPECT_EQ(headers[i].size, std::filesystem::file_size(paths_[i]));
    const auto expected = ReadSafetensors(File::Open(paths_[i]));
    ASSERT_EQ(headers[i].entries.size(), expected.size());
    EXPECT_EQ(headers[i].entries.front().name, expected.front().name);
    EXPECT_EQ(headers[i].entries.back().end, expected.back().end);
  }
}

TEST_P(ShardHeadersTest, TheFirstFailureIsNamedWhicheverThreadMeetsIt) {
  Truncate(paths_[4], 100);
  Truncate(paths_[2], 100);
  ExpectError(ErrorCode::kBadModel, {"model-00003-of-000006", "truncated"},
              [&] { ReadShardHeaders(paths_, pool_); });
  std::filesystem::remove(paths_[1]);
  ExpectError(ErrorCode::kBadModel, {"model-00002-of-000006", "missing"},
              [&] { ReadShardHeaders(paths_, pool_); });
}

INSTANTIATE_TEST_SUITE_P(Threads, ShardHeadersTest, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace thimble
