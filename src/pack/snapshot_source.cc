#include "pack/snapshot_source.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace thimble {

SnapshotSource::SnapshotSource(const ModelConfig& config, const TensorStore& store)
    : config_(config), store_(store) {
  for (const ShardFile& file : store.files()) files_.push_back(File::Open(file.path));
}

void SnapshotSource::Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  if (use.kind == ExtentUse::Kind::kExpert) return ReadExpert(use, offset, out);
  const TensorExtent& extent = TrunkExtent(use);
  THIMBLE_CHECK(offset + out.size() <= extent.Bytes());
  files_[extent.file].ReadAt(extent.offset + offset, out.size(), out.data());
}

const TensorExtent& SnapshotSource::TrunkExtent(const ExtentUse& use) const {
  if (use.kind == ExtentUse::Kind::kGlobal) {
    return store_.Global(GlobalTensors(config_).at(use.item).role);
  }
  const auto specs = LayerTensors(config_, config_.layers.at(use.layer));
  return store_.Layer(use.layer, specs.at(use.item).role);
}

void SnapshotSource::ReadExpert(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  const ExpertExtent extent = store_.Expert(use.layer, use.item);
  uint64_t start = 0;  // of the piece, in the expert
  for (const ExpertTensor tensor : kStoredExpertOrder) {
    if (out.empty()) break;
    const ExpertPiece& piece = extent[static_cast<size_t>(tensor)];
    const uint64_t end = start + piece.bytes;
    if (offset < end) {
      const auto part = out.first(std::min<uint64_t>(out.size(), end - offset));
      files_[piece.file].ReadAt(piece.offset + (offset - start), part.size(), part.data());
      if (IsScales(tensor) && std::find(part.begin(), part.end(), kScaleNan) != part.end()) {
        throw Error(ErrorCode::kBadModel,
                    files_[piece.file].path().string() + ": layer " + std::to_string(use.layer) +
                        ", expert " + std::to_string(use.item) +
                        ": a scale is NaN (255), which no published file has; it is damaged: "
                        "download it again");
      }
      out = out.subspan(part.size());
      offset += part.size();
    }
    start = end;
  }
  THIMBLE_CHECK(out.empty());
}

}  // namespace thimble
