#include "residency/expert_layout.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "residency/trunk_schedule.h"

namespace thimble {

ExpertLayout LayOutExpert(const ExpertExtent& extent) {
  std::array<size_t, kExpertTensors> order;
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return extent[a].file != extent[b].file ? extent[a].file < extent[b].file
                                            : extent[a].offset < extent[b].offset;
  });
  ExpertLayout layout;
  for (size_t i = 0; i < order.size();) {
    const ExpertPiece& first = extent[order[i]];
    if (first.bytes == 0) {
      ++i;
      continue;
    }
    uint64_t end = first.offset;
    const size_t run = i;
    while (i < order.size() && extent[order[i]].bytes != 0 && extent[order[i]].file == first.file &&
           extent[order[i]].offset == end) {
      end += extent[order[i++]].bytes;
    }
    const ReadRequest read = AlignedRead(first.file, first.offset, end - first.offset);
    for (size_t j = run; j < i; ++j) {
      layout.data_offset[order[j]] = layout.bytes + (extent[order[j]].offset - read.offset);
    }
    layout.read_offset[layout.num_reads] = layout.bytes;
    layout.reads[layout.num_reads++] = read;
    layout.bytes += read.bytes;
  }
  if (extent.coded_scale_bytes != 0) {
    THIMBLE_CHECK(layout.num_reads == 1);
    const ExpertPiece& first = extent[order[0]];
    layout.reads[0] = AlignedRead(first.file, first.offset, extent.StoredBytes());
  }
  return layout;
}

ExpertView ViewExpert(const ModelConfig& config, const ExpertLayout& layout, const std::byte* slot,
                      uint32_t expert) {
  const size_t inner = config.moe.inner_size;
  const size_t width = config.ExpertWidth();
  const auto matrix = [&](size_t rows, size_t cols, ExpertTensor codes, ExpertTensor scales) {
    const auto at = [&](ExpertTensor tensor) {
      return reinterpret_cast<const uint8_t*>(slot +
                                              layout.data_offset[static_cast<size_t>(tensor)]);
    };
    const bool packed = config.moe.format == WeightFormat::kMXFP4;
    return WeightMatrix{config.moe.format, rows, cols, at(codes), packed ? at(scales) : nullptr};
  };
  return {expert, matrix(inner, width, ExpertTensor::kGate, ExpertTensor::kGateScales),
          matrix(inner, width, ExpertTensor::kUp, ExpertTensor::kUpScales),
          matrix(width, inner, ExpertTensor::kDown, ExpertTensor::kDownScales)};
}

}  // namespace thimble
