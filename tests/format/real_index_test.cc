#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "format/tensor_store.h"
#include "support/sanitizers.h"
#include "support/shared_data.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

// Makes the kernel count this process's peak of resident memory from now on.
void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

uint64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  uint64_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

TEST(RealIndexTest, ResolvesKimiK3InAFewTimesItsText) {
  THIMBLE_NEED_SHARED("data/kimi-k3/model.safetensors.index.json.gz");
  const TempDir dir;
  const auto data = SharedDir() / "data/kimi-k3";
  const std::string unzip = "gzip -dc '" + (data / "model.safetensors.index.json.gz").string() +
                            "' > '" + (dir / "model.safetensors.index.json").string() + "'";
  ASSERT_EQ(std::system(unzip.c_str()), 0);
  const ModelConfig config = ReadModelConfig(data);
  ResetPeak();
  const auto report = TensorStore::CheckIndex(dir.path(), config);
  const uint64_t peak = PeakResidentBytes();
  EXPECT_EQ(report.num_tensors, 497'220U);
  EXPECT_EQ(report.num_text_tensors, 497'052U);
  EXPECT_EQ(report.shards.size(), 96U);
  EXPECT_EQ(report.total_size, 1'560'860'324'864U);
  EXPECT_GT(peak, 0U);
  if (!kSanitized) {
    EXPECT_LT(peak, 180'000'000U);  // the text has 60 MB
  }
  RecordProperty("peak_bytes", std::to_string(peak));
}

}  // namespace
}  // namespace thimble
