#include "pack/model_source.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "codec/coded_scales.h"
#include "kernels/decode_group.h"

namespace thimble {

ModelSource::ModelSource(const ModelConfig& config, const TensorStore& store,
                         const ContainerCheck* check)
    : config_(config), store_(store), check_(check) {
  for (const ShardFile& file : store.files()) files_.push_back(File::Open(file.path));
}

void ModelSource::Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  if (offset == 0) {
    checksum_.Reset();
    next_row_ = 0;
    undecodable_ = false;
    decoded_ = {};
  }
  const bool is_expert = use.kind == ExtentUse::Kind::kExpert;
  const uint64_t bytes = is_expert ? ReadExpert(use, offset, out) : ReadTensor(use, offset, out);
  if (check_ != nullptr && offset + out.size() == bytes) CheckWhole(use);
}

uint64_t ModelSource::ReadTensor(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  const TensorExtent& extent = TrunkExtent(use);
  const uint64_t bytes = extent.rows * extent.RowBytes();
  THIMBLE_CHECK(offset + out.size() <= bytes);
  if (!extent.is_coded()) {
    Fetch(extent.file, extent.offset + offset, out);
    return bytes;
  }
  while (!out.empty()) {
    if (decoded_.empty()) NextGroup(extent);
    out = out.subspan(TakeDecoded(out));
  }
  return bytes;
}

uint64_t ModelSource::ReadExpert(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  const ExpertExtent extent = store_.Expert(use.layer, use.item);
  uint64_t start = 0;  // of the piece, in the expert
  for (const ExpertTensor tensor : kStoredExpertOrder) {
    const ExpertPiece& piece = extent[static_cast<size_t>(tensor)];
    const uint64_t end = start + piece.bytes;
    if (offset < end && !out.empty()) {
      const auto part = out.first(std::min<uint64_t>(out.size(), end - offset));
      if (IsScales(tensor) && extent.coded_scale_bytes != 0) {
        if (offset == start && tensor == ExpertTensor::kGateScales) ReadScales(extent);
        THIMBLE_CHECK(TakeDecoded(part) == part.size());
      } else {
        Fetch(piece.file, piece.offset + (offset - start), part);
        if (IsScales(tensor)) CheckScales(use, files_[piece.file], part);
      }
      out = out.subspan(part.size());
      offset += part.size();
    }
    start = end;
  }
  THIMBLE_CHECK(out.empty());
  return start;
}

const TensorExtent& ModelSource::TrunkExtent(const ExtentUse& use) const {
  if (use.kind == ExtentUse::Kind::kGlobal) {
    return store_.Global(GlobalTensors(config_).at(use.item).role);
  }
  const auto specs = LayerTensors(config_, config_.layers.at(use.layer));
  return store_.Layer(use.layer, specs.at(use.item).role);
}

void ModelSource::NextGroup(const TensorExtent& extent) {
  const size_t rows = std::min(extent.group_rows, extent.rows - next_row_);
  const uint64_t first = extent.RowOffset(next_row_);
  next_row_ += rows;
  coded_.resize(extent.RowOffset(next_row_) - first);
  Fetch(extent.file, extent.offset + first, std::as_writable_bytes(std::span(coded_)));
  if (!DecodeGroup(coded_, rows, extent.cols, &elements_)) {
    undecodable_ = true;
    elements_.assign(rows * extent.cols, 0);
  }
  decoded_ = std::as_bytes(std::span(elements_));
}

void ModelSource::ReadScales(const ExpertExtent& extent) {
  const ExpertPiece& first = extent[static_cast<size_t>(ExpertTensor::kGateScales)];
  coded_.resize(extent.coded_scale_bytes);
  Fetch(first.file, first.offset, std::as_writable_bytes(std::span(coded_)));
  scales_.resize(extent.ScaleBytes());
  undecodable_ = !DecodeScales(coded_, scales_);
  decoded_ = std::as_bytes(std::span(scales_));
}

// Extents are read front to back, so that what is fetched is the extent as it was stored.
void ModelSource::Fetch(size_t file, uint64_t offset, std::span<std::byte> out) {
  files_[file].ReadAt(offset, out.size(), out.data());
  if (check_ != nullptr) checksum_.Update(out.data(), out.size());
}

size_t ModelSource::TakeDecoded(std::span<std::byte> out) {
  const size_t bytes = std::min(out.size(), decoded_.size());
  std::memcpy(out.data(), decoded_.data(), bytes);
  decoded_ = decoded_.subspan(bytes);
  return bytes;
}

// Of a container the checksum says more.
void ModelSource::CheckScales(const ExtentUse& use, const File& file,
                              std::span<const std::byte> scales) const {
  if (check_ != nullptr || std::ranges::find(scales, kScaleNan) == scales.end()) return;
  throw Error(ErrorCode::kBadModel,
              file.path().string() + ": layer " + std::to_string(use.layer) + ", expert " +
                  std::to_string(use.item) +
                  ": a scale is NaN (255), which no published file has; it is damaged: download it "
                  "again");
}

void ModelSource::CheckWhole(const ExtentUse& use) const {
  check_->Check(use, checksum_.Digest());
  if (!undecodable_) return;
  throw Error(ErrorCode::kBadModel,
              check_->PathOf(use).string() + ": " + Describe(use, check_->container().manifest) +
                  ": expected coded rows or scales, found bytes that cannot be decoded, though "
                  "their checksum is right: they were packed wrongly; pack the model again from "
                  "where it came from");
}

}  // namespace thimble
