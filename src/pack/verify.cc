#include "pack/verify.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/byte_size.h"
#include "base/error.h"
#include "codec/coded_scales.h"
#include "format/checksum.h"
#include "format/container.h"
#include "format/model_files.h"
#include "format/published_hash.h"
#include "format/tensor_store.h"
#include "io/file.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"
#include "pack/model_source.h"

namespace thimble {
namespace {

constexpr size_t kChunkBytes = 8 * kMiB;
constexpr size_t kMaxShown = 20;

// Reads files through one buffer and tells the observer.
class Scanner {
 public:
  Scanner(uint64_t total, PackObserver* observer) : total_(total), observer_(observer) {}

  // Calls visit(offset, bytes) for each chunk of [offset, offset + bytes).
  template <typename Visit>
  void Scan(const File& file, uint64_t offset, uint64_t bytes, const Visit& visit) {
    for (uint64_t at = 0; at < bytes;) {
      const size_t count = std::min<uint64_t>(bytes - at, kChunkBytes);
      file.ReadAt(offset + at, count, chunk_.data());
      visit(offset + at, std::span<const std::byte>(chunk_.data(), count));
      at += count;
      report_.bytes += count;
      if (observer_ != nullptr && !observer_->OnProgress(report_.bytes, total_, 0)) {
        throw Error(ErrorCode::kInterrupted, "stopped before everything was read");
      }
    }
  }

  void AddDamage(std::string what) {
    if (++report_.num_damaged <= kMaxShown) report_.damages.push_back(std::move(what));
  }

  VerifyReport& report() { return report_; }

 private:
  uint64_t total_;
  PackObserver* observer_;
  MemoryBudget budget_{kChunkBytes};
  Buffer chunk_{budget_, "chunk", kChunkBytes};
  VerifyReport report_;
};

// What the kernel remembers of a file says nothing about the drive.
File OpenUncached(const std::filesystem::path& path) {
  File file = File::Open(path);
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
  return file;
}

// ---- containers

void VerifyExtent(const Container& container, size_t index, const File& file, Scanner* scanner) {
  const ContainerExtent& extent = container.table.extents[index];
  const std::string where =
      file.path().string() + ": " + Describe(container.uses[index], container.manifest) + " (" +
      std::to_string(extent.bytes) + " bytes at byte " + std::to_string(extent.offset) + ")";
  const ExtentUse& use = container.uses[index];
  const bool has_coded = use.coded_scales && extent.bytes < use.bytes;
  const uint64_t first_coded = extent.offset + (has_coded ? ScalesOffset(use) : extent.bytes);
  Checksum checksum;
  std::vector<uint8_t> coded;  // scales
  try {
    scanner->Scan(file, extent.offset, extent.bytes, [&](uint64_t offset, auto bytes) {
      checksum.Update(bytes.data(), bytes.size());
      if (offset + bytes.size() <= first_coded) return;
      const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
      coded.insert(coded.end(), data + (std::max(first_coded, offset) - offset),
                   data + bytes.size());
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kRuntime) throw;
    return scanner->AddDamage(where + ": " + error.what());
  }
  if (checksum.Digest() == extent.checksum) {
    std::vector<uint8_t> scales(has_coded ? use.bytes - ScalesOffset(use) : 0);
    if (!DecodeScales(coded, scales)) {
      scanner->AddDamage(where + ": its coded scales cannot be decoded");
    }
    return;
  }
  scanner->AddDamage(where + ": expected the checksum " + FormatChecksum(extent.checksum) +
                     ", found " + FormatChecksum(checksum.Digest()));
}

VerifyReport VerifyContainer(const Container& container, PackObserver* observer) {
  uint64_t total = 0;
  for (const ContainerExtent& extent : container.table.extents) total += extent.bytes;
  Scanner scanner(total, observer);
  size_t index = 0;
  for (size_t i = 0; i < container.paths.size(); ++i) {
    const File file = OpenUncached(container.paths[i]);
    for (; index < container.table.extents.size() && container.table.extents[index].file == i;
         ++index) {
      VerifyExtent(container, index, file, &scanner);
    }
  }
  scanner.report().is_container = true;
  scanner.report().num_checked = container.table.extents.size();
  return std::move(scanner.report());
}

// ---- checkpoints as published

struct ScaleRange {
  uint64_t offset;
  uint64_t bytes;
  uint32_t layer;
  uint32_t expert;
};

// The scales of each shard, in the order of the file.
std::vector<std::vector<ScaleRange>> FindScales(const ModelConfig& config,
                                                const TensorStore& store) {
  std::vector<std::vector<ScaleRange>> ranges(store.files().size());
  for (uint32_t layer = 0; layer < config.num_layers(); ++layer) {
    if (config.layers[layer].feed_forward != FeedForwardKind::kMoe) continue;
    for (uint32_t expert = 0; expert < config.moe.num_experts; ++expert) {
      const ExpertExtent extent = store.Expert(layer, expert);
      for (size_t i = 0; i < kExpertTensors; ++i) {
        if (!IsScales(static_cast<ExpertTensor>(i)) || extent[i].bytes == 0) continue;
        ranges[extent[i].file].push_back({extent[i].offset, extent[i].bytes, layer, expert});
      }
    }
  }
  for (auto& file : ranges) std::ranges::sort(file, {}, &ScaleRange::offset);
  return ranges;
}

// The scales that lie in [offset, offset + bytes.size()) of a file.
void CheckScales(const std::vector<ScaleRange>& ranges, const File& file, uint64_t offset,
                 std::span<const std::byte> bytes, Scanner* scanner) {
  const uint64_t end = offset + bytes.size();
  auto range = std::ranges::upper_bound(
      ranges, offset, {}, [](const ScaleRange& scales) { return scales.offset + scales.bytes; });
  for (; range != ranges.end() && range->offset < end; ++range) {
    const uint64_t from = std::max(range->offset, offset);
    const uint64_t to = std::min(range->offset + range->bytes, end);
    const auto part = bytes.subspan(from - offset, to - from);
    const auto bad = std::ranges::find(part, kScaleNan);
    if (bad == part.end()) continue;
    const uint64_t at = from + static_cast<uint64_t>(bad - part.begin());
    scanner->AddDamage(file.path().string() + ": layer " + std::to_string(range->layer) +
                       ", expert " + std::to_string(range->expert) + ": the scale at byte " +
                       std::to_string(at) + " is NaN (255), which no published file has");
  }
}

// Compares a file that is read front to back with its published hash.
class HashCheck {
 public:
  explicit HashCheck(const File& file) : path_(file.path()), hash_(FindPublishedHash(path_)) {
    if (hash_) hasher_.emplace(hash_->kind, file.size());
  }

  bool has_hash() const { return hash_.has_value(); }
  void Update(std::span<const std::byte> bytes) {
    if (hasher_) hasher_->Update(bytes);
  }
  // What is wrong, once all of the file came; empty where it is right.
  std::string Finish() {
    if (!hasher_) return {};
    const std::string found = hasher_->Finish();
    if (found == hash_->hex) return {};
    const bool is_sha256 = hash_->kind == PublishedHash::Kind::kSha256;
    return fmt::format("{}: expected the {} {}, as published, found {}", path_.string(),
                       is_sha256 ? "SHA-256" : "git hash", hash_->hex, found);
  }

 private:
  std::filesystem::path path_;
  std::optional<PublishedHash> hash_;
  std::optional<FileHasher> hasher_;
};

// Files beside the weights that have a published hash.
void VerifySmallFiles(const std::filesystem::path& dir, Scanner* scanner) {
  for (const char* name : {kConfigFile, kGenerationConfigFile, kIndexFile, "tiktoken.model",
                           "tokenizer_config.json"}) {
    if (!FileExists(dir / name)) continue;
    const File file = File::Open(dir / name);
    HashCheck check(file);
    if (!check.has_hash()) continue;
    scanner->Scan(file, 0, file.size(), [&](uint64_t, auto bytes) { check.Update(bytes); });
    const std::string damage = check.Finish();
    if (!damage.empty()) scanner->AddDamage(damage);
  }
}

uint64_t TotalBytes(const TensorStore& store) {
  uint64_t total = 0;
  for (const ShardFile& shard : store.files()) total += shard.size;
  return total;
}

VerifyReport VerifyCheckpoint(const std::filesystem::path& dir, const ModelConfig& config,
                              const TensorStore& store, PackObserver* observer) {
  Scanner scanner(TotalBytes(store), observer);
  const auto scales = FindScales(config, store);
  for (size_t i = 0; i < store.files().size(); ++i) {
    const File file = OpenUncached(store.files()[i].path);
    HashCheck check(file);
    scanner.report().num_hashed += check.has_hash() ? 1 : 0;
    try {
      scanner.Scan(file, 0, file.size(), [&](uint64_t offset, auto bytes) {
        check.Update(bytes);
        CheckScales(scales[i], file, offset, bytes, &scanner);
      });
      const std::string damage = check.Finish();
      if (!damage.empty()) scanner.AddDamage(damage);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kRuntime) throw;
      scanner.AddDamage(error.what());
    }
  }
  VerifySmallFiles(dir, &scanner);
  scanner.report().num_checked = store.files().size();
  return std::move(scanner.report());
}

}  // namespace

VerifyReport VerifyModel(const std::filesystem::path& dir, PackObserver* observer) {
  const ModelConfig config = ReadModelConfig(dir);
  if (IsContainer(dir)) return VerifyContainer(OpenContainer(dir, config), observer);
  return VerifyCheckpoint(dir, config, TensorStore::Open(dir, config), observer);
}

void CheckPublishedHashes(const std::filesystem::path& dir, const TensorStore& store,
                          PackObserver* observer) {
  Scanner scanner(TotalBytes(store), observer);
  for (const ShardFile& shard : store.files()) {
    const File file = OpenUncached(shard.path);
    HashCheck check(file);
    if (!check.has_hash()) continue;
    scanner.Scan(file, 0, file.size(), [&](uint64_t, auto bytes) { check.Update(bytes); });
    const std::string damage = check.Finish();
    if (!damage.empty()) {
      throw Error(ErrorCode::kBadModel,
                  fmt::format("{}; {} is damaged: download that file again", damage, dir.string()));
    }
  }
}

}  // namespace thimble
