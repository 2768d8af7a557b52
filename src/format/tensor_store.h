#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "codec/weight_matrix.h"
#include "format/lossy_part.h"
#include "format/model_config.h"
#include "format/tensor_role.h"

namespace thimble {

/// Files of a model are smaller: the store packs offsets into 48 bits.
inline constexpr uint64_t kMaxFileBytes = uint64_t{1} << 48;

/// Where one tensor of the trunk lies. [offset, offset + Bytes()) is inside the file, checked when
/// the store was opened.
struct TensorExtent {
  uint32_t file = 0;  // index into TensorStore::files()
  uint64_t offset = 0;
  DType dtype = DType::kBF16;
  size_t rows = 0;
  size_t cols = 0;
  /// Where it is coded (codec/coded_bf16.h; containers only): rows of a group, and where each group
  /// ends, from `offset`; the latter lives as long as the store.
  size_t group_rows = 0;
  const uint32_t* group_ends = nullptr;

  bool is_coded() const { return group_rows != 0; }
  /// Bytes of a row that is not coded.
  uint64_t RowBytes() const { return RowBytesOf(dtype, cols); }
  /// From `offset` to the start of `row`, or to the end where row == rows. Of a coded tensor the
  /// row starts a group.
  uint64_t RowOffset(size_t row) const;
  /// The most rows from `row` on that `bytes` hold, not cut to whole granules; of a coded tensor
  /// whole groups.
  size_t RowsWithin(size_t row, uint64_t bytes) const;
  /// What it takes in its file.
  uint64_t Bytes() const { return RowOffset(rows); }
};

/// Where one tensor of an expert lies.
struct ExpertPiece {
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // 0: absent (scales of a BF16 expert)
};

/// Where an expert lies.
struct ExpertExtent {
  std::array<ExpertPiece, kExpertTensors> tensors;
  /// Where its scales are coded (codec/coded_scales.h; containers only): in how many bytes. Then
  /// codes and scales follow one another as `tensors` says, but for the scales, which come last and
  /// whose places there are those that decoding gives them.
  uint64_t coded_scale_bytes = 0;

  const ExpertPiece& operator[](size_t tensor) const { return tensors[tensor]; }
  ExpertPiece& operator[](size_t tensor) { return tensors[tensor]; }
  /// Of the scales, decoded.
  uint64_t ScaleBytes() const;
  /// What it takes in its files.
  uint64_t StoredBytes() const;
};

struct ShardFile {
  std::filesystem::path path;
  uint64_t size = 0;
};

/// The directory of a model's weights, resolved to typed, bounds-checked extents: a checkpoint as
/// published (config, `model.safetensors.index.json` or a single `model.safetensors`, and shards),
/// or a packed container (format/container.h). Reads headers, never payload. Immutable; safe from
/// any thread.
///
/// Experts are held as arithmetic over compact tables (48 or 56 bytes an expert), not by name: the
/// full Kimi K3 has 497,220 tensors.
class TensorStore {
 public:
  /// Opens `dir` and checks every tensor that `config` calls for: present once, in the shard that
  /// the index names, of the shape expected, of a dtype that the role allows (BF16 or F32 for the
  /// trunk; for experts BF16, or U8 codes and scales), inside its file, overlapping no other.
  /// Tensors of parts that Thimble does not run (vision tower, projector) are allowed and ignored;
  /// any other unknown tensor is an error. Error(kBadModel) names file, tensor, expected, found,
  /// remedy. Where `dir` holds a manifest, it is a container and is checked as strictly; extents of
  /// synthetic ones may then be shared by several layers or experts.
  static TensorStore Open(const std::filesystem::path& dir, const ModelConfig& config);
  TensorStore(const TensorStore&) = delete;  // extents point into it
  TensorStore& operator=(const TensorStore&) = delete;
  TensorStore(TensorStore&&) = default;
  TensorStore& operator=(TensorStore&&) = default;

  const std::vector<ShardFile>& files() const { return files_; }
  /// What was quantised when the model was packed; empty where it is exact, or not packed.
  const std::vector<LossyPart>& lossy() const { return lossy_; }
  /// `layer` indexes config.layers. The role must be one that LayerTensors lists for it.
  const TensorExtent& Layer(size_t layer, TensorRole role) const;
  const TensorExtent& Global(TensorRole role) const;
  /// `layer` must be a MoE layer.
  ExpertExtent Expert(size_t layer, size_t expert) const;
  /// Bytes of one expert: all its tensors, decoded. The same for every expert of a model.
  uint64_t expert_bytes() const { return expert_bytes_; }
  /// What an expert takes in its files, on the average.
  uint64_t MeanStoredExpertBytes() const;
  /// The longest coded scales of an expert; 0 where none is coded.
  uint64_t MostCodedScaleBytes() const;

  /// What an index says of itself (`inspect` on a model that is not downloaded).
  struct IndexReport {
    size_t num_tensors = 0;           // entries in the index
    size_t num_text_tensors = 0;      // of them, tensors of the text model, each one expected
    std::vector<std::string> shards;  // by name
    uint64_t total_size = 0;          // as the index states it; 0 where it does not
  };
  /// Resolves `dir`/model.safetensors.index.json alone against `config`: every expected tensor is
  /// named once, and no unknown one. Without an index, one shard holds all. Needs no shard. Reads
  /// the text in pieces: K3's 60 MB of index cost a few MB of memory.
  static IndexReport CheckIndex(const std::filesystem::path& dir, const ModelConfig& config);

 private:
  class Builder;           // from shards
  class ContainerBuilder;  // from a container, in container_store.cc
  // 16 bits of file, 48 of offset.
  using PackedPlace = uint64_t;
  static constexpr int kOffsetBits = 48;

  explicit TensorStore(const ModelConfig& config);
  static TensorStore OpenPacked(const std::filesystem::path& dir, const ModelConfig& config);

  std::vector<ShardFile> files_;
  std::vector<LossyPart> lossy_;
  std::vector<std::vector<TensorExtent>> layers_;  // [layer][role]; no rows: no such tensor
  std::vector<TensorExtent> globals_;              // [role]
  std::vector<uint32_t> group_ends_;               // of all coded tensors
  std::vector<std::array<PackedPlace, kExpertTensors>> experts_;  // [moe layer * experts + expert]
  std::vector<uint64_t> coded_scale_bytes_;  // [same]; 0: plain. Empty where no expert has any
  std::vector<size_t> moe_index_;            // [layer] -> index among the MoE layers, or kNotMoe
  std::array<uint64_t, kExpertTensors> piece_bytes_ = {};
  size_t num_experts_ = 0;
  uint64_t expert_bytes_ = 0;
};

}  // namespace thimble
