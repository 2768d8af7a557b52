#include "memory/memory_nodes.h"

#include <gtest/gtest.h>
#include <numaif.h>

#include <cerrno>

#include "base/byte_size.h"
#include "memory/buffer.h"

namespace thimble {
namespace {

TEST(MemoryNodesTest, SaysWhyMemoryIsNotSpread) {
  const MemoryNodes& nodes = ProcessMemoryNodes();
  EXPECT_GE(nodes.count, 1U);
  EXPECT_EQ(nodes.interleaves, nodes.reason.empty());
  if (nodes.count == 1) {
    EXPECT_FALSE(nodes.interleaves);
  }
}

TEST(MemoryNodesTest, ABufferIsSpreadWhereThereAreSeveral) {
  MemoryBudget budget(4 * kMiB);
  Buffer buffer(budget, "test", 4 * kMiB);
  int policy = -1;
  if (::get_mempolicy(&policy, nullptr, 0, buffer.data(), MPOL_F_ADDR) != 0) {
    GTEST_SKIP() << "the system does not tell the policy of memory";
  }
  EXPECT_EQ(policy, ProcessMemoryNodes().interleaves ? MPOL_INTERLEAVE : MPOL_DEFAULT);
}

}  // namespace
}  // namespace thimble
