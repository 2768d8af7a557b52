#include <numeric>

#include "kernels/kernel_test_util.h"

namespace thimble {
namespace {

class LimitsTest : public KernelTest {};

TEST_P(LimitsTest, SumsEveryWord) {
  std::mt19937 random(1);
  for (const size_t count : kLengths) {
    GuardedBuffer<uint32_t> words(count);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
    EXPECT_EQ(kernels_.sum_words(words.data(), count),
              std::accumulate(words.begin(), words.end(), uint32_t{0}))
        << count;
  }
}

TEST_P(LimitsTest, ChainsAreComputedAndCounted) {
  constexpr double kChains = 12;
  float sum = 0;
  EXPECT_EQ(kernels_.multiply_add_chains(0, &sum), 0);
  const double lanes = sum / 78;  // 1 + 2 + ... + 12
  EXPECT_EQ(kernels_.multiply_add_chains(1, &sum), 2 * kChains * lanes);
  EXPECT_EQ(sum, lanes * (78 + kChains) / 2);
  EXPECT_EQ(kernels_.multiply_add_chains(1000, &sum), 1000 * 2 * kChains * lanes);
  EXPECT_EQ(sum, lanes * kChains);  // each has come to rest at 1
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(LimitsTest);

}  // namespace
}  // namespace thimble
