#include "format/container.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "codec/coded_bf16.h"
#include "format/checksum.h"
#include "format/config_json.h"
#include "format/model_files.h"
#include "format/tensor_store.h"
#include "io/file.h"
#include "io/foreign_file.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;
constexpr size_t kMaxFiles = std::numeric_limits<uint16_t>::max();
constexpr size_t kMaxDirectories = 64;
constexpr size_t kMaxExtents = size_t{1} << 26;

// The head of the extent table: magic, version, bytes of a record, numbers of records and groups.
constexpr std::string_view kTableMagic = "THIMBLEX";
constexpr size_t kHeadBytes = 32;
constexpr size_t kRecordBytes = 24;
constexpr int kOffsetBits = 48;

constexpr const char* kRemedy =
    "; manifest and files must be of one container: copy it again, or pack the model again";

[[noreturn]] void Fail(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kBadModel, source + ": " + what + kRemedy);
}

std::string_view NameOf(Architecture architecture) {
  return architecture == Architecture::kKimiK3 ? "kimi_k3" : "kimi_linear";
}

// ---- manifest.json to values

bool IsPlainName(const std::string& name) {
  return !name.empty() && name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

void CheckVersion(const JsonFields& fields, const std::string& source) {
  const size_t version = fields.NonNegative("version");
  if (version == kContainerVersion) return;
  throw Error(ErrorCode::kBadModel,
              source + ": expected a container of version " + std::to_string(kContainerVersion) +
                  ", which this Thimble reads, found version " + std::to_string(version) +
                  "; pack the model again with this Thimble, or use the one that packed it");
}

uint64_t ReadChecksum(const JsonFields& fields, const char* key) {
  const std::string text = fields.Text(key);
  uint64_t checksum = 0;
  const char* last = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), last, checksum, 16);
  fields.Check(text.size() == 16 && error == std::errc() && rest == last, key,
               "16 hexadecimal digits");
  return checksum;
}

Architecture ReadArchitecture(const JsonFields& fields) {
  const std::string name = fields.Text("architecture");
  for (const Architecture known : {Architecture::kKimiK3, Architecture::kKimiLinear}) {
    if (name == NameOf(known)) return known;
  }
  fields.Fail("architecture", "kimi_k3 or kimi_linear");
}

std::vector<std::string> ReadDirectories(const JsonFields& fields) {
  std::vector<std::string> directories = fields.TextList("directories");
  fields.Check(
      !directories.empty() && directories.size() <= kMaxDirectories && directories[0] == ".",
      "directories", "1 to 64 paths, the first of them '.'");
  for (size_t i = 1; i < directories.size(); ++i) {
    const bool valid =
        directories[i].starts_with('/') && directories[i].find('\0') == std::string::npos;
    fields.Check(valid, "directories", "absolute paths after the first");
  }
  return directories;
}

std::vector<LossyPart> ReadLossy(const JsonFields& fields) {
  std::vector<LossyPart> parts;
  if (!fields.Has("lossy")) return parts;
  for (const JsonFields& entry : fields.ObjectList("lossy")) {
    LossyPart part = {entry.Text("part"), entry.Text("format"), entry.Number("relative_error")};
    const bool experts = part.part == kLossyExperts;
    entry.Check((experts || part.part == kLossyTrunk) && !IsLossy(parts, part.part), "part",
                "\"experts\" or \"trunk\", each once");
    const std::string_view format = experts ? kLossyMxfp4 : kLossyQ8;
    entry.Check(part.format == format, "format", "\"" + std::string(format) + "\"");
    entry.Check(part.relative_error >= 0, "relative_error", "a number that is not negative");
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<ContainerFile> ReadFiles(const JsonFields& fields, size_t num_directories) {
  std::vector<ContainerFile> files;
  std::set<std::pair<size_t, std::string>> seen;
  for (const JsonFields& entry : fields.ObjectList("files")) {
    ContainerFile file;
    file.name = entry.Text("name");
    entry.Check(IsPlainName(file.name), "name", "a plain file name");
    file.directory = entry.NonNegative("directory");
    entry.Check(file.directory < num_directories, "directory", "an index into 'directories'");
    file.size = entry.Integer("size", 0, kMaxFileBytes - 1);
    entry.Check(seen.emplace(file.directory, file.name).second, "name", "each file once");
    files.push_back(std::move(file));
  }
  fields.Check(!files.empty() && files.size() <= kMaxFiles, "files", "1 to 65535 files");
  return files;
}

ContainerTensor ReadTensor(const JsonFields& fields) {
  ContainerTensor tensor;
  tensor.name = fields.Text("name");
  const std::optional<DType> dtype = ParseDType(fields.Text("dtype"));
  const bool known = dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kQ8;
  fields.Check(known, "dtype", "BF16, F32 or Q8");
  tensor.dtype = *dtype;
  const std::vector<size_t> shape = fields.PositiveList("shape");
  fields.Check(shape.size() == 2, "shape", "two sizes: rows and columns");
  tensor.rows = shape[0];
  tensor.cols = shape[1];
  fields.Check(dtype != DType::kQ8 || tensor.cols % kQ8Group == 0, "shape",
               "a multiple of 32 columns, since it is Q8");
  tensor.group_rows = fields.MaybeNonNegative("group_rows").value_or(0);
  if (tensor.group_rows == 0) return tensor;
  fields.Check(tensor.group_rows <= tensor.rows && tensor.dtype == DType::kBF16 &&
                   tensor.cols <= kMaxCodedCols &&
                   tensor.rows <= std::numeric_limits<uint32_t>::max() / 2 / tensor.cols - 1 &&
                   tensor.MaxBytes() <= std::numeric_limits<uint32_t>::max(),
               "group_rows", "at most the rows of a BF16 tensor below 4 GiB");
  return tensor;
}

size_t ReadExtent(const JsonFields& fields, const ContainerManifest& manifest) {
  const size_t extent = fields.NonNegative("extent");
  fields.Check(extent < manifest.num_extents, "extent",
               "a number below extents.count (" + std::to_string(manifest.num_extents) + ")");
  return extent;
}

ContainerLayer ReadLayer(const JsonFields& fields, const ContainerManifest& manifest) {
  ContainerLayer layer;
  layer.first_extent = ReadExtent(fields, manifest);
  for (const JsonFields& entry : fields.ObjectList("tensors")) {
    layer.tensors.push_back(ReadTensor(entry));
  }
  fields.Check(layer.tensors.size() <= manifest.num_extents - layer.first_extent, "tensors",
               "no more than there are extents");
  const std::optional<JsonFields> experts = fields.MaybeObject("experts");
  if (!experts) return layer;
  layer.first_expert = ReadExtent(*experts, manifest);
  layer.distinct_experts = experts->Positive("distinct");
  experts->Check(layer.distinct_experts <= manifest.num_extents - layer.first_expert, "distinct",
                 "no more than there are extents");
  return layer;
}

// ---- uses

// Collects the uses of a manifest's extents.
class UseTable {
 public:
  UseTable(const ContainerManifest& manifest, const std::string& source)
      : source_(source), uses_(manifest.num_extents) {}

  void Add(size_t extent, const ExtentUse& use) {
    if (extent >= uses_.size())
      Fail(source_, "it names the extent " + std::to_string(extent) + ", expected less than " +
                        std::to_string(uses_.size()));
    ExtentUse& known = uses_[extent];
    if (known.kind == ExtentUse::Kind::kNone) {
      known = use;
      return;
    }
    shared_ = true;
    if (known.kind != use.kind || known.bytes != use.bytes ||
        known.starts_group != use.starts_group) {
      Fail(source_,
           "extent " + std::to_string(extent) + " is used for tensors of different kinds or sizes");
    }
  }

  // For what repeats within a layer: its extents are listed once.
  void NoteSharing() { shared_ = true; }

  std::vector<ExtentUse> Finish(bool says_shared) {
    for (size_t i = 0; i < uses_.size(); ++i) {
      if (uses_[i].kind == ExtentUse::Kind::kNone) {
        Fail(source_, "extent " + std::to_string(i) + " is used by nothing");
      }
    }
    if (shared_ != says_shared) {
      Fail(source_, std::string("'shared_extents' is ") + (says_shared ? "true" : "false") +
                        ", but " + (shared_ ? "some" : "no") + " extent has several uses");
    }
    return std::move(uses_);
  }

 private:
  const std::string& source_;
  std::vector<ExtentUse> uses_;
  bool shared_ = false;
};

void CheckTensor(const TensorSpec& spec, const ContainerTensor& tensor, const std::string& where) {
  const bool cols_fit =
      spec.role == TensorRole::kALog ? tensor.cols >= spec.cols : tensor.cols == spec.cols;
  if (tensor.group_rows != 0 && !MayBeCoded(spec.role)) {
    Fail(where, "'" + tensor.name + "' is coded, which this tensor may not be");
  }
  if (tensor.dtype == DType::kQ8 && !MayBeQuantized(spec.role)) {
    Fail(where, "'" + tensor.name + "' is Q8, which this tensor may not be");
  }
  if (tensor.name == spec.name && tensor.rows == spec.rows && cols_fit) return;
  const auto shown = [](std::string_view name, size_t rows, size_t cols) {
    return "'" + std::string(name) + "' [" + std::to_string(rows) + ", " + std::to_string(cols) +
           "]";
  };
  Fail(where, "expected " + shown(spec.name, spec.rows, spec.cols) +
                  ", as config.json calls for, found " +
                  shown(tensor.name, tensor.rows, tensor.cols));
}

void CheckCount(const std::string& where, const char* what, std::array<size_t, 2> expected_found) {
  if (expected_found[0] == expected_found[1]) return;
  Fail(where, "expected " + std::to_string(expected_found[0]) + " " + what +
                  ", as config.json calls for, found " + std::to_string(expected_found[1]));
}

// What every expert of a layer has in common.
ExtentUse ExpertUse(const ContainerManifest& manifest, const ModelConfig& config, uint32_t layer) {
  ExtentUse use;
  use.kind = ExtentUse::Kind::kExpert;
  use.starts_group = true;
  use.coded_scales = manifest.coded_scales;
  use.layer = layer;
  use.bytes = ExpertBytes(config);
  return use;
}

// Bounds what a manifest makes the program allocate.
void CheckNumExtents(const ContainerManifest& manifest, const ModelConfig& config,
                     const std::string& source) {
  size_t most = GlobalTensors(config).size();
  for (const LayerSpec& spec : config.layers) {
    const bool is_moe = spec.feed_forward == FeedForwardKind::kMoe;
    most += LayerTensors(config, spec).size() + (is_moe ? config.moe.num_experts : 0);
  }
  if (manifest.num_extents <= most) return;
  Fail(source, "expected at most " + std::to_string(most) +
                   " extents, as config.json calls for, found " +
                   std::to_string(manifest.num_extents));
}

void CheckCodedScales(const ContainerManifest& manifest, const ModelConfig& config,
                      const std::string& source) {
  if (!manifest.coded_scales || config.moe.format == WeightFormat::kMXFP4) return;
  Fail(source, "its experts have coded scales, but config.json has no MXFP4 experts");
}

// What is quantised is called lossy, and what is called so is.
void CheckLossy(const ContainerManifest& manifest, const ModelConfig& config,
                const std::string& source) {
  if (IsLossy(manifest.lossy, kLossyExperts) && config.moe.format != WeightFormat::kMXFP4) {
    Fail(source, "it calls its experts quantised to MXFP4, which config.json does not");
  }
  const bool any_q8 = std::ranges::any_of(manifest.layers, [](const ContainerLayer& layer) {
    return std::ranges::count(layer.tensors, DType::kQ8, &ContainerTensor::dtype) > 0;
  });
  if (any_q8 == IsLossy(manifest.lossy, kLossyTrunk)) return;
  Fail(source, any_q8 ? "it has Q8 tensors, but does not call its trunk lossy"
                      : "it calls its trunk lossy, but has no Q8 tensor");
}

void AddGlobals(const ContainerManifest& manifest, const ModelConfig& config,
                const std::string& source, UseTable* table) {
  const std::vector<TensorSpec> specs = GlobalTensors(config);
  CheckCount(source, "tensors outside the layers", {specs.size(), manifest.globals.size()});
  for (uint32_t i = 0; i < specs.size(); ++i) {
    const ContainerGlobal& global = manifest.globals[i];
    CheckTensor(specs[i], global.tensor, source);
    table->Add(global.extent, {.kind = ExtentUse::Kind::kGlobal,
                               .starts_group = true,
                               .item = i,
                               .bytes = global.tensor.MaxBytes()});
  }
}

void AddLayer(const ContainerLayer& layer, const std::vector<TensorSpec>& specs,
              const ExtentUse& expert, const std::string& where, UseTable* table) {
  CheckCount(where, "tensors", {specs.size(), layer.tensors.size()});
  for (uint32_t i = 0; i < specs.size(); ++i) {
    CheckTensor(specs[i], layer.tensors[i], where);
    table->Add(layer.first_extent + i, {.kind = ExtentUse::Kind::kLayer,
                                        .starts_group = i == 0,
                                        .layer = expert.layer,
                                        .item = i,
                                        .bytes = layer.tensors[i].MaxBytes()});
  }
  ExtentUse use = expert;
  for (uint32_t i = 0; i < layer.distinct_experts; ++i) {
    use.item = i;
    table->Add(layer.first_expert + i, use);
  }
}

// ---- extent table

void AppendNumber(uint64_t value, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t NumberAt(std::string_view bytes, size_t offset, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes[offset + i])} << (8 * i);
  }
  return value;
}

// Walks the extents in order and proves that they tile their files.
class TileCheck {
 public:
  TileCheck(const ContainerManifest& manifest, const std::string& source)
      : manifest_(manifest), source_(source) {}

  void Add(size_t index, const ContainerExtent& extent, const ExtentUse& use) {
    const bool next_file = index > 0 && extent.file == file_ + 1;
    if (next_file) FinishFile();
    if (extent.file != file_ || file_ >= manifest_.files.size()) {
      FailAt(index, "lies in file " + std::to_string(extent.file) +
                        ", expected the file before "
                        "it or the next, of " +
                        std::to_string(manifest_.files.size()));
    }
    if (use.starts_group) end_ = RoundUp(end_, kContainerAlignment);
    if (extent.offset != end_ || (next_file && !use.starts_group)) {
      FailAt(index, "starts at byte " + std::to_string(extent.offset) + " of " +
                        manifest_.files[file_].name + ", expected byte " + std::to_string(end_));
    }
    if (!IsPossibleSize(extent.bytes, use)) {
      FailAt(index, "has " + std::to_string(extent.bytes) + " bytes, its tensors need " +
                        std::to_string(use.bytes));
    }
    const uint64_t size = manifest_.files[file_].size;
    if (extent.bytes > size || extent.offset > size - extent.bytes) {
      FailAt(index, "passes the end of " + manifest_.files[file_].name + ", which has " +
                        std::to_string(size) + " bytes");
    }
    end_ = extent.offset + extent.bytes;
  }

  void Finish() {
    FinishFile();
    if (file_ != manifest_.files.size()) {
      Fail(source_, "expected extents in " + std::to_string(manifest_.files.size()) +
                        " files, found some in " + std::to_string(file_));
    }
  }

 private:
  // The groups of a coded tensor are summed up elsewhere.
  bool IsPossibleSize(uint64_t bytes, const ExtentUse& use) const {
    const ContainerTensor* tensor = TensorOf(use, manifest_);
    if (tensor != nullptr && tensor->group_rows != 0) return true;
    const bool has_coded = use.coded_scales && bytes > ScalesOffset(use) && bytes < use.bytes;
    return bytes == use.bytes || has_coded;
  }

  [[noreturn]] void FailAt(size_t index, const std::string& what) const {
    Fail(source_, "extent " + std::to_string(index) + " " + what);
  }

  void FinishFile() {
    const uint64_t expected = RoundUp(end_, kContainerAlignment);
    const ContainerFile& file = manifest_.files[file_];
    if (file.size != expected) {
      Fail(source_, "its extents fill " + std::to_string(expected) + " bytes of " + file.name +
                        ", the manifest gives it " + std::to_string(file.size));
    }
    ++file_;
    end_ = 0;
  }

  const ContainerManifest& manifest_;
  const std::string& source_;
  size_t file_ = 0;
  uint64_t end_ = 0;
};

// Groups of all coded tensors.
size_t CountGroups(const ContainerManifest& manifest, const std::vector<ExtentUse>& uses) {
  size_t groups = 0;
  for (const ExtentUse& use : uses) {
    if (const ContainerTensor* tensor = TensorOf(use, manifest)) groups += tensor->NumGroups();
  }
  return groups;
}

uint64_t TableBytes(const ContainerManifest& manifest, size_t num_groups) {
  return kHeadBytes + uint64_t{manifest.num_extents} * kRecordBytes +
         uint64_t{num_groups} * sizeof(uint32_t);
}

// Proves that the groups of a coded tensor fill its extent, each of a size that it can have.
void CheckGroups(const ContainerTensor& tensor, uint64_t extent_bytes,
                 std::span<const uint32_t> ends, const std::string& where) {
  uint32_t start = 0;
  for (size_t group = 0; group < ends.size(); ++group) {
    const size_t rows = std::min(tensor.group_rows, tensor.rows - group * tensor.group_rows);
    const bool possible = ends[group] > start && ends[group] - start > kCodedHeadBytes &&
                          ends[group] - start <= MaxCodedGroupBytes(rows, tensor.cols);
    if (!possible) Fail(where, "group " + std::to_string(group) + " has an impossible size");
    start = ends[group];
  }
  if (start == extent_bytes) return;
  Fail(where, "its groups have " + std::to_string(start) + " bytes, the extent has " +
                  std::to_string(extent_bytes));
}

void CheckTableHead(std::string_view bytes, const ContainerManifest& manifest, size_t num_groups,
                    const std::string& source) {
  const uint64_t expected = TableBytes(manifest, num_groups);
  if (bytes.size() != expected) {
    Fail(source, "expected " + std::to_string(expected) + " bytes for " +
                     std::to_string(manifest.num_extents) + " extents, found " +
                     std::to_string(bytes.size()));
  }
  const bool fits = bytes.starts_with(kTableMagic) && NumberAt(bytes, 8, 4) == kContainerVersion &&
                    NumberAt(bytes, 12, 4) == kRecordBytes &&
                    NumberAt(bytes, 16, 8) == manifest.num_extents &&
                    NumberAt(bytes, 24, 8) == num_groups;
  if (!fits) {
    Fail(source,
         "it does not start as an extent table of version " + std::to_string(kContainerVersion));
  }
  const uint64_t checksum = ChecksumOf(bytes);
  if (checksum != manifest.table_checksum) {
    Fail(source, "expected the checksum " + FormatChecksum(manifest.table_checksum) + ", found " +
                     FormatChecksum(checksum));
  }
}

// ---- files

void CheckFile(const std::filesystem::path& path, uint64_t expected) {
  if (!FileExists(path)) {
    throw Error(ErrorCode::kBadModel, path.string() +
                                          " is missing, which the manifest names; copy it again, "
                                          "or attach the drive that holds it");
  }
  const uint64_t size = File::Open(path).size();
  if (size == expected) return;
  throw Error(ErrorCode::kBadModel,
              path.string() + (size < expected ? " is truncated" : " is too long") + ": expected " +
                  std::to_string(expected) + " bytes, found " + std::to_string(size) +
                  "; copy it again, or pack the model again");
}

nlohmann::ordered_json ToJson(const LossyPart& part) {
  // Six digits name a float of this size: what is read is written again as it was.
  const double error = std::round(double{part.relative_error} * 1e6) / 1e6;
  return {{"part", part.part}, {"format", part.format}, {"relative_error", error}};
}

nlohmann::ordered_json ToJson(const ContainerTensor& tensor) {
  nlohmann::ordered_json json = {{"name", tensor.name},
                                 {"dtype", std::string(NameOf(tensor.dtype))},
                                 {"shape", {tensor.rows, tensor.cols}}};
  if (tensor.group_rows != 0) json["group_rows"] = tensor.group_rows;
  return json;
}

}  // namespace

size_t ContainerTensor::NumGroups() const {
  return group_rows == 0 ? 0 : CeilDiv(rows, group_rows);
}

uint64_t ContainerTensor::MaxBytes() const { return PlainBytes() + NumGroups() * kCodedHeadBytes; }

bool MayBeCoded(TensorRole role) {
  return IsMatrix(role) && role != TensorRole::kEmbedding && role != TensorRole::kKvB;
}

bool MayBeQuantized(TensorRole role) {
  switch (role) {
    case TensorRole::kRouter:
    case TensorRole::kDecayA:
    case TensorRole::kDecayB:
    case TensorRole::kBeta:
      return false;
    default:
      return MayBeCoded(role);
  }
}

size_t CodedGroupRows(size_t cols) {
  constexpr size_t kGroupBytes = size_t{256} << 10;
  return std::max<size_t>(1, kGroupBytes / (cols * sizeof(uint16_t)));
}

ContainerManifest ParseManifest(std::string_view json, const std::string& source) {
  const JsonValue root = ParseConfigJson(json, source);
  const JsonFields fields(root, {source});
  fields.Check(fields.Text("format") == kContainerFormat, "format",
               "\"" + std::string(kContainerFormat) + "\"");
  CheckVersion(fields, source);
  ContainerManifest manifest;
  manifest.architecture = ReadArchitecture(fields);
  manifest.source = fields.Text("source");
  manifest.shared_extents = fields.Bool("shared_extents");
  manifest.lossy = ReadLossy(fields);
  manifest.coded_scales = fields.MaybeBool("coded_scales").value_or(false);
  manifest.directories = ReadDirectories(fields);
  manifest.files = ReadFiles(fields, manifest.directories.size());
  const JsonFields extents = fields.Object("extents");
  manifest.num_extents = extents.Positive("count");
  extents.Check(manifest.num_extents <= kMaxExtents, "count", "at most 2^26");
  manifest.table_checksum = ReadChecksum(extents, "checksum");
  for (const JsonFields& entry : fields.ObjectList("globals")) {
    manifest.globals.push_back({ReadExtent(entry, manifest), ReadTensor(entry)});
  }
  for (const JsonFields& entry : fields.ObjectList("layers")) {
    manifest.layers.push_back(ReadLayer(entry, manifest));
  }
  return manifest;
}

std::string ManifestText(const ContainerManifest& manifest) {
  nlohmann::ordered_json json = {{"format", std::string(kContainerFormat)},
                                 {"version", kContainerVersion},
                                 {"architecture", std::string(NameOf(manifest.architecture))},
                                 {"source", manifest.source},
                                 {"shared_extents", manifest.shared_extents}};
  for (const LossyPart& part : manifest.lossy) json["lossy"].push_back(ToJson(part));
  if (manifest.coded_scales) json["coded_scales"] = true;
  json["directories"] = manifest.directories;
  for (const ContainerFile& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"directory", file.directory}, {"size", file.size}});
  }
  json["extents"] = {{"count", manifest.num_extents},
                     {"checksum", FormatChecksum(manifest.table_checksum)}};
  for (const ContainerGlobal& global : manifest.globals) {
    json["globals"].push_back(ToJson(global.tensor));
    json["globals"].back()["extent"] = global.extent;
  }
  for (const ContainerLayer& layer : manifest.layers) {
    nlohmann::ordered_json entry = {{"extent", layer.first_extent}};
    for (const ContainerTensor& tensor : layer.tensors) entry["tensors"].push_back(ToJson(tensor));
    if (layer.distinct_experts != 0) {
      entry["experts"] = {{"extent", layer.first_expert}, {"distinct", layer.distinct_experts}};
    }
    json["layers"].push_back(std::move(entry));
  }
  return json.dump(1) + "\n";
}

std::vector<ExtentUse> ExtentUses(const ContainerManifest& manifest, const ModelConfig& config,
                                  const std::string& source) {
  CheckLossy(manifest, config, source);
  CheckCodedScales(manifest, config, source);
  if (manifest.architecture != config.architecture) {
    Fail(source, "it is of a " + std::string(NameOf(manifest.architecture)) +
                     " model, config.json of a " + std::string(NameOf(config.architecture)));
  }
  CheckCount(source, "layers", {config.num_layers(), manifest.layers.size()});
  CheckNumExtents(manifest, config, source);
  UseTable table(manifest, source);
  AddGlobals(manifest, config, source, &table);
  for (uint32_t i = 0; i < config.num_layers(); ++i) {
    const ContainerLayer& layer = manifest.layers[i];
    const std::string where = source + ": layer " + std::to_string(i);
    const bool is_moe = config.layers[i].feed_forward == FeedForwardKind::kMoe;
    const size_t most = is_moe ? config.moe.num_experts : 0;
    if (layer.distinct_experts > most || (is_moe && layer.distinct_experts == 0)) {
      Fail(where, "expected " + std::to_string(most) +
                      " experts or less, as config.json has it, "
                      "found " +
                      std::to_string(layer.distinct_experts));
    }
    if (is_moe && layer.distinct_experts < most && !manifest.shared_extents) {
      Fail(where, "it stores " + std::to_string(layer.distinct_experts) + " of " +
                      std::to_string(most) + " experts, but 'shared_extents' is false");
    }
    AddLayer(layer, LayerTensors(config, config.layers[i]), ExpertUse(manifest, config, i), where,
             &table);
    if (layer.distinct_experts < most) table.NoteSharing();
  }
  return table.Finish(manifest.shared_extents);
}

const ContainerTensor* TensorOf(const ExtentUse& use, const ContainerManifest& manifest) {
  switch (use.kind) {
    case ExtentUse::Kind::kGlobal:
      return &manifest.globals[use.item].tensor;
    case ExtentUse::Kind::kLayer:
      return &manifest.layers[use.layer].tensors[use.item];
    case ExtentUse::Kind::kExpert:
    case ExtentUse::Kind::kNone:
      break;
  }
  return nullptr;
}

std::string Describe(const ExtentUse& use, const ContainerManifest& manifest) {
  if (use.kind == ExtentUse::Kind::kGlobal) return manifest.globals[use.item].tensor.name;
  const std::string layer = "layer " + std::to_string(use.layer) + ", ";
  if (use.kind == ExtentUse::Kind::kExpert) return layer + "expert " + std::to_string(use.item);
  return layer + manifest.layers[use.layer].tensors[use.item].name;
}

ExtentTable ParseExtentTable(std::string_view bytes, const ContainerManifest& manifest,
                             const std::vector<ExtentUse>& uses, const std::string& source) {
  const size_t num_groups = CountGroups(manifest, uses);
  CheckTableHead(bytes, manifest, num_groups, source);
  THIMBLE_CHECK(uses.size() == manifest.num_extents);
  ExtentTable table;
  table.group_ends.resize(num_groups);
  const size_t first_group = kHeadBytes + uses.size() * kRecordBytes;
  for (size_t i = 0; i < num_groups; ++i) {
    table.group_ends[i] =
        static_cast<uint32_t>(NumberAt(bytes, first_group + i * sizeof(uint32_t), 4));
  }
  TileCheck tiles(manifest, source);
  table.extents.reserve(uses.size());
  size_t group = 0;
  for (size_t i = 0; i < uses.size(); ++i) {
    const size_t at = kHeadBytes + i * kRecordBytes;
    const uint64_t place = NumberAt(bytes, at, 8);
    table.extents.push_back({static_cast<uint32_t>(place >> kOffsetBits),
                             place & (kMaxFileBytes - 1), NumberAt(bytes, at + 8, 8),
                             NumberAt(bytes, at + 16, 8), group});
    tiles.Add(i, table.extents.back(), uses[i]);
    const ContainerTensor* tensor = TensorOf(uses[i], manifest);
    if (tensor == nullptr || tensor->group_rows == 0) continue;
    const auto ends = std::span(table.group_ends).subspan(group, tensor->NumGroups());
    CheckGroups(*tensor, table.extents.back().bytes, ends,
                source + ": extent " + std::to_string(i));
    group += ends.size();
  }
  tiles.Finish();
  return table;
}

std::string ExtentTableBytes(const ExtentTable& table) {
  std::string bytes(kTableMagic);
  AppendNumber(kContainerVersion, 4, &bytes);
  AppendNumber(kRecordBytes, 4, &bytes);
  AppendNumber(table.extents.size(), 8, &bytes);
  AppendNumber(table.group_ends.size(), 8, &bytes);
  for (const ContainerExtent& extent : table.extents) {
    AppendNumber(uint64_t{extent.file} << kOffsetBits | extent.offset, 8, &bytes);
    AppendNumber(extent.bytes, 8, &bytes);
    AppendNumber(extent.checksum, 8, &bytes);
  }
  for (const uint32_t end : table.group_ends) AppendNumber(end, sizeof(end), &bytes);
  return bytes;
}

bool IsContainer(const std::filesystem::path& dir) { return FileExists(dir / kManifestFile); }

std::filesystem::path ContainerPath(const std::filesystem::path& dir,
                                    const ContainerManifest& manifest, const ContainerFile& file) {
  return file.directory == 0
             ? dir / file.name
             : std::filesystem::path(manifest.directories[file.directory]) / file.name;
}

Container OpenContainer(const std::filesystem::path& dir, const ModelConfig& config) {
  CheckModelDirectory(dir);
  const std::filesystem::path path = dir / kManifestFile;
  const std::filesystem::path table_path = dir / kExtentTableFile;
  Container container;
  container.manifest = ParseManifest(ReadModelText(path, kMaxManifestBytes), path.string());
  container.uses = ExtentUses(container.manifest, config, path.string());
  const uint64_t table_bytes =
      TableBytes(container.manifest, CountGroups(container.manifest, container.uses));
  CheckFile(table_path, table_bytes);
  container.table = ParseExtentTable(ReadTextFile(table_path, table_bytes), container.manifest,
                                     container.uses, table_path.string());
  for (const ContainerFile& file : container.manifest.files) {
    container.paths.push_back(ContainerPath(dir, container.manifest, file));
    CheckFile(container.paths.back(), file.size);
  }
  return container;
}

}  // namespace thimble
