#include "format/container_check.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/checksum.h"
#include "io/file.h"

namespace thimble {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

bool IsExpert(const ExtentUse& use) { return use.kind == ExtentUse::Kind::kExpert; }

}  // namespace

ContainerCheck ContainerCheck::Open(const std::filesystem::path& dir, const ModelConfig& config) {
  if (!IsContainer(dir)) {
    throw Error(ErrorCode::kUsage,
                "--check compares a model with its checksums, and " + dir.string() +
                    " has none: models as downloaded carry none. Pack it with 'thimble pack' and "
                    "run the copy, or compare the files with what their publisher states");
  }
  return ContainerCheck(OpenContainer(dir, config));
}

size_t ContainerCheck::ExtentOf(const ExtentUse& use) const {
  const ContainerManifest& manifest = container_.manifest;
  if (use.kind == ExtentUse::Kind::kGlobal) return manifest.globals.at(use.item).extent;
  const ContainerLayer& layer = manifest.layers.at(use.layer);
  return IsExpert(use) ? layer.ExpertExtentIndex(use.item) : layer.first_extent + use.item;
}

const std::filesystem::path& ContainerCheck::PathOf(const ExtentUse& use) const {
  return container_.paths[container_.table.extents[ExtentOf(use)].file];
}

void ContainerCheck::Check(const ExtentUse& use, uint64_t found) const {
  const size_t extent = ExtentOf(use);
  const ContainerExtent& place = container_.table.extents[extent];
  if (found == place.checksum) return;
  throw Error(ErrorCode::kBadModel,
              container_.paths[place.file].string() + " is damaged: " +
                  Describe(use, container_.manifest) + " (extent " + std::to_string(extent) + ", " +
                  std::to_string(place.bytes) + " bytes at byte " + std::to_string(place.offset) +
                  "): expected the checksum " + FormatChecksum(place.checksum) + ", found " +
                  FormatChecksum(found) + "; copy the file again, or pack the model again");
}

void ContainerCheck::CheckTrunk(const std::function<void(uint64_t, uint64_t)>& on_read) const {
  uint64_t total = 0;
  for (size_t i = 0; i < container_.table.extents.size(); ++i) {
    if (!IsExpert(container_.uses[i])) total += container_.table.extents[i].bytes;
  }
  std::vector<File> files;
  files.reserve(container_.paths.size());
  for (const auto& path : container_.paths) files.push_back(File::Open(path));
  std::vector<std::byte> chunk(kChunkBytes);
  uint64_t done = 0;
  for (size_t i = 0; i < container_.table.extents.size(); ++i) {
    if (IsExpert(container_.uses[i])) continue;
    const ContainerExtent& extent = container_.table.extents[i];
    Checksum checksum;
    for (uint64_t at = 0; at < extent.bytes;) {
      const size_t count = std::min<uint64_t>(extent.bytes - at, chunk.size());
      files[extent.file].ReadAt(extent.offset + at, count, chunk.data());
      checksum.Update(chunk.data(), count);
      at += count;
      done += count;
      if (on_read) on_read(done, total);
    }
    Check(container_.uses[i], checksum.Digest());
  }
}

void ContainerCheck::CheckExpert(size_t layer, size_t expert,
                                 std::span<const std::byte> bytes) const {
  const ExtentUse use = {.kind = ExtentUse::Kind::kExpert,
                         .layer = static_cast<uint32_t>(layer),
                         .item = static_cast<uint32_t>(expert)};
  THIMBLE_CHECK(bytes.size() == container_.table.extents[ExtentOf(use)].bytes);
  Check(use, ChecksumOf({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

}  // namespace thimble
