#include "io/device_reads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/system_tree_builder.h"

namespace thimble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DeviceWatchTest : public testing::Test {
 protected:
  void SetRead(uint64_t bytes) {
    system_.Put("proc/self/io",
                "rchar: 99999999\nread_bytes: " + std::to_string(bytes) + "\nwrite_bytes: 7\n");
  }
  SystemTreeBuilder system_;
};

TEST_F(DeviceWatchTest, WhatTheDriveDeliveredIsARate) {
  SetRead(5000);
  EXPECT_EQ(DeviceReadBytes(system_.tree()), 5000U);
  const DeviceWatch watch(system_.tree());
  SetRead(5000 + 100'000'000);
  EXPECT_EQ(watch.Obstacle(100'000'000), "");
}

TEST_F(DeviceWatchTest, WhatThePageCacheDeliveredIsNone) {
  SetRead(5000);
  const DeviceWatch watch(system_.tree());
  SetRead(5000 + 2'000'000);
  EXPECT_THAT(watch.Obstacle(100'000'000),
              AllOf(HasSubstr("2.00 MB"), HasSubstr("(2 %)"), HasSubstr("page cache")));
}

TEST_F(DeviceWatchTest, ReadsThatNobodyCountsAreNone) {
  const DeviceWatch watch(system_.tree());
  EXPECT_THAT(watch.Obstacle(100'000'000), HasSubstr("/proc/self/io"));
}

}  // namespace
}  // namespace thimble
