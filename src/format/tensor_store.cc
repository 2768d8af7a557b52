#include "format/tensor_store.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/checked_math.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "format/container.h"
#include "format/download.h"
#include "format/model_files.h"
#include "format/safetensors.h"
#include "format/shard_headers.h"
#include "format/tensor_names.h"
#include "format/weight_index.h"

namespace thimble {
namespace {

constexpr size_t kNumRoles = static_cast<size_t>(TensorRole::kCount);
constexpr size_t kNotMoe = std::numeric_limits<size_t>::max();

bool IsConv(TensorRole role) {
  return role == TensorRole::kQueryConv || role == TensorRole::kKeyConv ||
         role == TensorRole::kValueConv;
}

bool IsResidualProjection(TensorRole role) {
  return role == TensorRole::kAttnResProj || role == TensorRole::kMlpResProj ||
         role == TensorRole::kOutputResProj;
}

using Shape = std::vector<uint64_t>;

// The shape that the published files give a tensor of the trunk.
Shape PublishedShape(const TensorSpec& spec) {
  if (IsConv(spec.role)) return {spec.rows, 1, spec.cols};
  if (IsMatrix(spec.role) || IsResidualProjection(spec.role)) return {spec.rows, spec.cols};
  return {spec.cols};
}

bool ShapeFits(const TensorSpec& spec, const SafetensorsEntry& entry) {
  if (spec.role == TensorRole::kALog) {
    uint64_t count = 1;
    for (const uint64_t dim : entry.shape) count *= dim;  // fits: the entry lies in its file
    return count >= spec.cols;
  }
  if (IsConv(spec.role) && entry.shape == Shape{spec.rows, spec.cols}) return true;
  return entry.shape == PublishedShape(spec);
}

std::string ExpectedShape(const TensorSpec& spec) {
  if (spec.role == TensorRole::kALog) return "at least " + std::to_string(spec.cols) + " elements";
  return "the shape " + FormatShape(PublishedShape(spec));
}

[[noreturn]] void FailTensor(const std::string& shard, const std::string& name,
                             const std::string& what) {
  throw Error(ErrorCode::kBadModel, shard + ": tensor '" + name + "': " + what +
                                        "; config.json and shards must be of one model: check the "
                                        "directory, or download it again");
}

}  // namespace

// Fills a store from an index (or a lone shard) and the headers of the shards.
class TensorStore::Builder {
 public:
  explicit Builder(const ModelConfig& config)
      : names_(config), store_(config), found_(names_.size(), false) {}

  TensorStore Build(const std::filesystem::path& dir) {
    const WeightIndex index = LoadWeightIndex(dir, names_);
    std::vector<std::filesystem::path> paths;
    for (const std::string& shard : index.text_shards) paths.push_back(dir / shard);
    ThreadPool pool(std::min(kMaxHeaderThreads, UsablePhysicalCores()));
    // As many at a time as there are threads: what has been parsed waits in memory.
    for (size_t first = 0; first < paths.size(); first += pool.num_threads()) {
      const size_t count = std::min(pool.num_threads(), paths.size() - first);
      for (const ShardHeader& header :
           ReadHeaders(std::span(paths).subspan(first, count), dir, index, pool)) {
        AddShard(header, index);
      }
    }
    CheckComplete(index);
    return std::move(store_);
  }

 private:
  // A download that is not complete is described as a whole.
  static std::vector<ShardHeader> ReadHeaders(std::span<const std::filesystem::path> paths,
                                              const std::filesystem::path& dir,
                                              const WeightIndex& index, ThreadPool& pool) {
    try {
      return ReadShardHeaders(paths, pool);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kBadModel) {
        RequireComplete(dir, ExamineDownload(dir, index.shards));
      }
      throw;
    }
  }

  void AddShard(const ShardHeader& header, const WeightIndex& index) {
    shard_ = header.path.string();
    store_.files_.push_back({header.path, header.size});
    for (const SafetensorsEntry& entry : header.entries) AddEntry(entry, index);
  }

  void AddEntry(const SafetensorsEntry& entry, const WeightIndex& index) {
    const TensorNames::Place place = names_.Find(entry.name);
    if (place.kind == TensorNames::Kind::kIgnored) return;
    if (place.kind == TensorNames::Kind::kUnknown) {
      FailTensor(shard_, entry.name, "config.json does not call for it");
    }
    const uint16_t expected = index.shard_of[place.slot];
    if (expected != CurrentFile()) {
      FailTensor(shard_, entry.name,
                 std::string("expected in ") + index.text_shards[expected] + ", as " + kIndexFile +
                     " has it, found here");
    }
    found_[place.slot] = true;
    if (place.kind == TensorNames::Kind::kExpert) {
      AddPiece(place, entry);
    } else {
      AddExtent(place, entry);
    }
  }

  void AddExtent(const TensorNames::Place& place, const SafetensorsEntry& entry) {
    const TensorSpec& spec = *place.spec;
    const std::optional<DType> dtype = ParseDType(entry.dtype);
    if (dtype != DType::kBF16 && dtype != DType::kF32) {
      FailTensor(shard_, entry.name, "expected BF16 or F32, found " + std::string(entry.dtype));
    }
    if (!ShapeFits(spec, entry)) {
      FailTensor(shard_, entry.name,
                 "expected " + ExpectedShape(spec) + ", found " + FormatShape(entry.shape));
    }
    auto& row =
        place.kind == TensorNames::Kind::kGlobal ? store_.globals_ : store_.layers_[place.layer];
    TensorExtent& extent = row[static_cast<size_t>(spec.role)];
    extent = {.file = CurrentFile(),
              .offset = entry.begin,
              .dtype = *dtype,
              .rows = spec.rows,
              .cols = spec.cols};
    if (spec.role == TensorRole::kALog) {
      extent.cols = (entry.end - entry.begin) / SizeOf(*dtype);
    }
  }

  void AddPiece(const TensorNames::Place& place, const SafetensorsEntry& entry) {
    const ExpertTensorSpec& piece = *place.piece;
    if (entry.dtype != NameOf(piece.dtype)) {
      FailTensor(
          shard_, entry.name,
          "expected " + std::string(NameOf(piece.dtype)) + ", found " + std::string(entry.dtype));
    }
    const Shape expected = {piece.rows, piece.cols};
    if (entry.shape != expected) {
      FailTensor(
          shard_, entry.name,
          "expected the shape " + FormatShape(expected) + ", found " + FormatShape(entry.shape));
    }
    const size_t row = store_.moe_index_[place.layer] * store_.num_experts_ + place.expert;
    store_.experts_[row][static_cast<size_t>(piece.tensor)] =
        uint64_t{CurrentFile()} << kOffsetBits | entry.begin;
  }

  void CheckComplete(const WeightIndex& index) const {
    for (size_t slot = 0; slot < found_.size(); ++slot) {
      if (found_[slot]) continue;
      const std::filesystem::path& shard = store_.files_[index.shard_of[slot]].path;
      FailTensor(shard.string(), names_.NameOf(slot), "expected in this shard, found nowhere");
    }
  }

  uint32_t CurrentFile() const { return static_cast<uint32_t>(store_.files_.size() - 1); }

  TensorNames names_;
  TensorStore store_;
  std::vector<bool> found_;  // [slot]
  std::string shard_;        // the one being read, for messages
};

uint64_t TensorExtent::RowOffset(size_t row) const {
  if (!is_coded()) return row * RowBytes();
  return row == 0 ? 0 : group_ends[CeilDiv(row, group_rows) - 1];
}

size_t TensorExtent::RowsWithin(size_t row, uint64_t bytes) const {
  if (!is_coded()) return std::min<uint64_t>(bytes / RowBytes(), rows - row);
  const uint32_t* first = group_ends + row / group_rows;
  const uint32_t* last = group_ends + CeilDiv(rows, group_rows);
  const uint32_t* end = std::upper_bound(first, last, RowOffset(row) + bytes);
  return std::min(static_cast<size_t>(end - group_ends) * group_rows, rows) - row;
}

uint64_t ExpertExtent::ScaleBytes() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < kExpertTensors; ++i) {
    if (IsScales(static_cast<ExpertTensor>(i))) bytes += tensors[i].bytes;
  }
  return bytes;
}

uint64_t ExpertExtent::StoredBytes() const {
  uint64_t bytes = 0;
  for (const ExpertPiece& piece : tensors) bytes += piece.bytes;
  return coded_scale_bytes == 0 ? bytes : bytes - ScaleBytes() + coded_scale_bytes;
}

TensorStore::TensorStore(const ModelConfig& config)
    : layers_(config.num_layers(), std::vector<TensorExtent>(kNumRoles)),
      globals_(kNumRoles),
      num_experts_(config.moe.num_experts),
      expert_bytes_(ExpertBytes(config)) {
  size_t moe_layers = 0;
  for (const LayerSpec& spec : config.layers) {
    const bool is_moe = spec.feed_forward == FeedForwardKind::kMoe;
    moe_index_.push_back(is_moe ? moe_layers++ : kNotMoe);
  }
  experts_.resize(moe_layers * num_experts_);
  for (const ExpertTensorSpec& piece : ExpertTensors(config)) {
    piece_bytes_[static_cast<size_t>(piece.tensor)] = piece.Bytes();
  }
}

TensorStore TensorStore::Open(const std::filesystem::path& dir, const ModelConfig& config) {
  CheckModelDirectory(dir);
  if (IsContainer(dir)) return OpenPacked(dir, config);
  return Builder(config).Build(dir);
}

TensorStore::IndexReport TensorStore::CheckIndex(const std::filesystem::path& dir,
                                                 const ModelConfig& config) {
  CheckModelDirectory(dir);
  const TensorNames names(config);
  WeightIndex index = LoadWeightIndex(dir, names);
  return {.num_tensors = index.num_tensors,
          .num_text_tensors = names.size(),
          .shards = std::move(index.shards),
          .total_size = index.total_size};
}

const TensorExtent& TensorStore::Layer(size_t layer, TensorRole role) const {
  THIMBLE_CHECK(layer < layers_.size() && role < TensorRole::kCount);
  const TensorExtent& extent = layers_[layer][static_cast<size_t>(role)];
  THIMBLE_CHECK(extent.rows != 0);
  return extent;
}

const TensorExtent& TensorStore::Global(TensorRole role) const {
  THIMBLE_CHECK(role < TensorRole::kCount);
  const TensorExtent& extent = globals_[static_cast<size_t>(role)];
  THIMBLE_CHECK(extent.rows != 0);
  return extent;
}

ExpertExtent TensorStore::Expert(size_t layer, size_t expert) const {
  THIMBLE_CHECK(layer < moe_index_.size() && moe_index_[layer] != kNotMoe);
  THIMBLE_CHECK(expert < num_experts_);
  const size_t row = moe_index_[layer] * num_experts_ + expert;
  const auto& places = experts_[row];
  ExpertExtent extent;
  for (size_t i = 0; i < kExpertTensors; ++i) {
    extent[i] = {.file = static_cast<uint32_t>(places[i] >> kOffsetBits),
                 .offset = places[i] & (kMaxFileBytes - 1),
                 .bytes = piece_bytes_[i]};
  }
  if (!coded_scale_bytes_.empty()) extent.coded_scale_bytes = coded_scale_bytes_[row];
  return extent;
}

uint64_t TensorStore::MeanStoredExpertBytes() const {
  uint64_t saved = 0;
  for (const uint64_t coded : coded_scale_bytes_) {
    if (coded != 0) saved += ScaleBytesOf(expert_bytes_) - coded;
  }
  return experts_.empty() ? 0 : expert_bytes_ - saved / experts_.size();
}

uint64_t TensorStore::MostCodedScaleBytes() const {
  return coded_scale_bytes_.empty() ? 0 : *std::ranges::max_element(coded_scale_bytes_);
}

}  // namespace thimble
