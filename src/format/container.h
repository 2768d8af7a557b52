#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "codec/weight_matrix.h"
#include "format/lossy_part.h"
#include "format/model_config.h"
#include "format/tensor_role.h"

namespace thimble {

// The packed container (docs/CONTAINER.md): a model's weights, copied once into files that are read
// in the order of the forward pass, each expert in one piece, with a checksum for everything.
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kExtentTableFile = "extents.bin";
inline constexpr const char* kCoreFile = "core.bin";
/// Beside the others only while a container is being written.
inline constexpr const char* kJournalFile = "journal.txt";
inline constexpr std::string_view kContainerFormat = "thimble-container";
inline constexpr uint64_t kContainerVersion = 3;
/// Parts and formats that LossyPart may name.
inline constexpr std::string_view kLossyExperts = "experts";
inline constexpr std::string_view kLossyMxfp4 = "mxfp4";
inline constexpr std::string_view kLossyTrunk = "trunk";
inline constexpr std::string_view kLossyQ8 = "q8";
/// Layers, tensors outside them, and experts start at multiples of this.
inline constexpr uint64_t kContainerAlignment = 4096;

/// The tensors of an expert in the order of its extent: what is coded comes last.
inline constexpr std::array kStoredExpertOrder = {
    ExpertTensor::kGate,       ExpertTensor::kDown,       ExpertTensor::kUp,
    ExpertTensor::kGateScales, ExpertTensor::kDownScales, ExpertTensor::kUpScales};

/// Bytes of the scales among those of an MXFP4 expert, before any coding.
constexpr uint64_t ScaleBytesOf(uint64_t expert_bytes) { return expert_bytes / (kMxGroup / 2 + 1); }

/// Contiguous bytes of a data file with a checksum: one tensor of the trunk, or one expert.
struct ContainerExtent {
  uint32_t file = 0;  // index into ContainerManifest::files
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;   // XXH3-64
  size_t first_group = 0;  // of a coded tensor: index into the table's group_ends
};

/// What extents.bin says.
struct ExtentTable {
  std::vector<ContainerExtent> extents;
  /// Of the coded tensors, one after another: where each group of rows ends, from the start of the
  /// extent.
  std::vector<uint32_t> group_ends;
};

struct ContainerFile {
  std::string name;      // a plain file name
  size_t directory = 0;  // index into ContainerManifest::directories
  uint64_t size = 0;
};

/// A tensor of the trunk as stored, a matrix [rows, cols]; a vector has one row.
struct ContainerTensor {
  std::string name;  // as TensorSpec has it
  DType dtype = DType::kBF16;
  size_t rows = 0;
  size_t cols = 0;
  /// Rows of a group, where it is coded (codec/coded_bf16.h); 0 where it is stored plain.
  size_t group_rows = 0;

  /// Of its elements.
  uint64_t PlainBytes() const { return rows * RowBytesOf(dtype, cols); }
  size_t NumGroups() const;
  /// The most that it takes in the container; what it takes where it is plain.
  uint64_t MaxBytes() const;
};

/// Whether the container may hold a tensor coded: matrices that are read by rows from first to
/// last. The embedding is read row by row, and kv_b twice, once across its rows.
bool MayBeCoded(TensorRole role);

/// Whether the container may hold a tensor as DType::kQ8: of those that may be coded the large
/// ones. Routers choose, and the decay and write strength of KDA act on a state that keeps their
/// errors: these stay exact.
bool MayBeQuantized(TensorRole role);

/// Rows of a coded group of a matrix of `cols` columns: what decodes to a quarter of a megabyte.
size_t CodedGroupRows(size_t cols);

struct ContainerLayer {
  size_t first_extent = 0;               // of the first of `tensors`; the others follow
  std::vector<ContainerTensor> tensors;  // in the order of LayerTensors
  size_t first_expert = 0;               // extent of expert 0; MoE layers only
  size_t distinct_experts = 0;           // expert e has extent first_expert + e % distinct_experts

  size_t ExpertExtentIndex(size_t expert) const { return first_expert + expert % distinct_experts; }
};

struct ContainerGlobal {
  size_t extent = 0;
  ContainerTensor tensor;
};

/// What manifest.json says.
struct ContainerManifest {
  Architecture architecture = Architecture::kKimiK3;
  std::string source;            // fingerprint of what the container was made from
  bool shared_extents = false;   // some layers or experts are stored once for several: synthetic
  std::vector<LossyPart> lossy;  // what was quantised when it was packed, each part at most once
  bool coded_scales = false;     // the scales of each expert are coded where that is shorter
  std::vector<std::string> directories = {"."};  // the container's own, then absolute paths
  std::vector<ContainerFile> files;
  size_t num_extents = 0;
  uint64_t table_checksum = 0;           // of the file kExtentTableFile
  std::vector<ContainerGlobal> globals;  // in the order of GlobalTensors
  std::vector<ContainerLayer> layers;
};

/// What an extent is for: the first use, where several share it.
struct ExtentUse {
  enum class Kind : uint8_t { kNone, kGlobal, kLayer, kExpert };
  Kind kind = Kind::kNone;
  bool starts_group = false;  // aligned; otherwise it follows the extent before it
  bool coded_scales = false;  // an expert whose scales are coded where it has fewer than `bytes`
  uint32_t layer = 0;
  uint32_t item = 0;   // index of the tensor among its layer's or the globals, or the expert
  uint64_t bytes = 0;  // what its tensors need at most; less only where coded
};

/// Where the scales of an expert start, coded or not, in an extent whose use has coded_scales.
constexpr uint64_t ScalesOffset(const ExtentUse& use) {
  return use.bytes - ScaleBytesOf(use.bytes);
}

/// The use of each extent. Error(kBadModel), naming `source`, unless the manifest has exactly the
/// tensors, layers and experts that `config` calls for, each extent is used, two uses of one agree,
/// and the manifest says whether any is shared.
std::vector<ExtentUse> ExtentUses(const ContainerManifest& manifest, const ModelConfig& config,
                                  const std::string& source);

/// The tensor of the trunk that an extent is for; null for an expert.
const ContainerTensor* TensorOf(const ExtentUse& use, const ContainerManifest& manifest);

/// "layer 5, self_attn.q_proj.weight" or "layer 7, expert 12", for messages.
std::string Describe(const ExtentUse& use, const ContainerManifest& manifest);

/// Parses manifest.json: fields, ranges, file names and directories. Error(kBadModel) names
/// `source` and the field. Whether it fits a model is the business of ExtentUses.
ContainerManifest ParseManifest(std::string_view json, const std::string& source);
std::string ManifestText(const ContainerManifest& manifest);

/// Parses the extent table, and checks it against the manifest: the stated number of extents, of
/// the stated sizes, which fill the files in order without overlap or hole but for alignment.
ExtentTable ParseExtentTable(std::string_view bytes, const ContainerManifest& manifest,
                             const std::vector<ExtentUse>& uses, const std::string& source);
std::string ExtentTableBytes(const ExtentTable& table);

/// A container whose every number is proven: all extents lie in files that exist and have the size
/// that the manifest states.
struct Container {
  ContainerManifest manifest;
  ExtentTable table;
  std::vector<ExtentUse> uses;
  std::vector<std::filesystem::path> paths;  // of the files
};

/// True where `dir` holds a manifest.
bool IsContainer(const std::filesystem::path& dir);

/// Opens the container in `dir`. Reads manifest and table, no payload. Error(kBadModel) names file,
/// what was expected, what was found and what to do.
Container OpenContainer(const std::filesystem::path& dir, const ModelConfig& config);

/// The path of a data file of the container in `dir`.
std::filesystem::path ContainerPath(const std::filesystem::path& dir,
                                    const ContainerManifest& manifest, const ContainerFile& file);

}  // namespace thimble
