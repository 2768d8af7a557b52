// A whole forward pass over readers that are late, out of order, or fail.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "residency/streamed_model.h"
#include "support/expect_error.h"
#include "support/fault_reader.h"

namespace thimble {
namespace {

class FaultySweepTest : public testing::TestWithParam<Architecture> {
 protected:
  // What a conversation of two sweeps gives.
  std::vector<float> TwoSweeps(StreamedModel& model) const {
    StateCache state = model.NewState();
    model.Advance(state, std::span(tokens_).first(5));
    return model.Advance(state, std::span(tokens_).subspan(5));
  }
  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  const Checkpoint& checkpoint_ = SmallCheckpoint(GetParam());
  const std::vector<uint32_t> tokens_ = {3, 14, 15, 9, 26, 5, 35};
};

TEST_P(FaultySweepTest, LateAndReorderedReadsChangeNoBit) {
  InstantReader instant(checkpoint_.paths());
  StreamedModel plain(checkpoint_, instant);
  const std::vector<float> expected = TwoSweeps(plain);
  for (const uint64_t seed : {1, 2, 3}) {
    DirtyReader dirty(instant);
    ShuffledReader shuffled(dirty, seed);
    StreamedModel model(checkpoint_, shuffled);
    EXPECT_TRUE(SameBits(expected, TwoSweeps(model))) << seed;
  }
}

// Whichever read fails, the sweep that asked for its own data ends with one error that names the
// file, its session is lost, and the next session gives what it would have given.
TEST_P(FaultySweepTest, AFailedReadPoisonsItsSessionAlone) {
  InstantReader instant(checkpoint_.paths());
  CountingReader counter(instant);
  std::vector<float> expected;
  {
    StreamedModel plain(checkpoint_, counter);
    expected = TwoSweeps(plain);
  }
  for (size_t fails_at = 0; fails_at < counter.num_reads(); fails_at += 7) {
    SCOPED_TRACE(fails_at);
    DirtyReader dirty(instant);
    FailingReader failing(dirty, checkpoint_.paths());
    StreamedModel model(checkpoint_, failing);
    failing.FailAfter(fails_at);
    bool failed = false;
    {
      StateCache state = model.NewState();
      for (const auto& part : {std::span(tokens_).first(5), std::span(tokens_).subspan(5)}) {
        try {
          model.Advance(state, part);
        } catch (const Error& error) {
          failed = true;
          EXPECT_EQ(error.code(), ErrorCode::kRuntime);
          EXPECT_NE(std::string(error.what()).find(".safetensors"), std::string::npos);
          EXPECT_TRUE(state.poisoned());
          ExpectError(ErrorCode::kUsage, {"start it anew"}, [&] { model.Advance(state, part); });
          break;
        }
      }
      EXPECT_EQ(failed, state.poisoned());
      EXPECT_EQ(failing.num_failed(), 1U);
    }
    // Where nothing failed, it was read ahead for a later sweep, which read it again.
    EXPECT_TRUE(SameBits(expected, TwoSweeps(model)));
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, FaultySweepTest,
                         testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                         [](const auto& test) { return ArchitectureName(test.param); });

}  // namespace
}  // namespace thimble
