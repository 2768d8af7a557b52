#include "codec/weight_matrix.h"

#include <gtest/gtest.h>

#include <array>

#include "base/dtype.h"

namespace thimble {
namespace {

TEST(DType, IsReadBackFromItsName) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kU8, DType::kQ8}) {
    EXPECT_EQ(ParseDType(NameOf(dtype)), dtype);
  }
  for (const char* name : {"", "bf16", "F16", "BF16 ", "F3", "I8", "F8_E4M3", "?"}) {
    EXPECT_EQ(ParseDType(name), std::nullopt) << name;
  }
}

TEST(DType, HasTheSizeThatSafetensorsGivesIt) {
  EXPECT_EQ(SizeOf(DType::kBF16), 2U);
  EXPECT_EQ(SizeOf(DType::kF32), 4U);
  EXPECT_EQ(SizeOf(DType::kU8), 1U);
}

TEST(WeightMatrix, CutsRowsOfDataAndScales) {
  const std::array<uint8_t, 1> data = {};
  const std::array<uint8_t, 1> scales = {};
  const struct {
    WeightFormat format;
    size_t row_bytes;
    size_t scale_bytes;
  } cases[] = {{WeightFormat::kBF16, 192, 0},
               {WeightFormat::kF32, 384, 0},
               {WeightFormat::kMXFP4, 48, 3},
               {WeightFormat::kQ8, 102, 0}};
  for (const auto& item : cases) {
    const bool packed = item.format == WeightFormat::kMXFP4;
    const WeightMatrix whole = {item.format, 10, 96, data.data(), packed ? scales.data() : nullptr};
    EXPECT_EQ(whole.RowBytes(), item.row_bytes);
    const WeightMatrix part = whole.Rows(3, 5);
    EXPECT_EQ(part.format, item.format);
    EXPECT_EQ(part.rows, 5U);
    EXPECT_EQ(part.cols, 96U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part.data),
              reinterpret_cast<uintptr_t>(data.data()) + 3 * item.row_bytes);
    if (!packed) {
      EXPECT_EQ(part.scales, nullptr);
      continue;
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part.scales),
              reinterpret_cast<uintptr_t>(scales.data()) + 3 * item.scale_bytes);
  }
}

TEST(WeightMatrix, AStoredRowTakesWhatItsViewDoes) {
  EXPECT_EQ(RowBytesOf(DType::kBF16, 96), 192U);
  EXPECT_EQ(RowBytesOf(DType::kF32, 3), 12U);
  EXPECT_EQ(RowBytesOf(DType::kQ8, 96), 102U);
}

TEST(WeightMatrix, PartOfAPartIsAPart) {
  const std::array<uint8_t, 4096> data = {};
  const WeightMatrix whole = {WeightFormat::kMXFP4, 64, 64, data.data(), data.data() + 2048};
  const WeightMatrix direct = whole.Rows(7, 2);
  const WeightMatrix nested = whole.Rows(4, 10).Rows(3, 2);
  EXPECT_EQ(direct.data, nested.data);
  EXPECT_EQ(direct.scales, nested.scales);
  EXPECT_EQ(direct.rows, nested.rows);
}

}  // namespace
}  // namespace thimble
