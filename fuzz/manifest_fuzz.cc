// Any bytes, taken as the manifest of a packed container, and after a NUL byte its extent table:
// either an Error or extents that lie inside their files.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "format/checksum.h"
#include "format/container.h"
#include "format/published_models.h"

namespace {

using namespace thimble;

void Open(std::string_view text, std::string_view table, const ModelConfig& config) {
  ContainerManifest manifest = ParseManifest(text, "fuzz/manifest.json");
  const auto uses = ExtentUses(manifest, config, "fuzz/manifest.json");
  for (const ExtentUse& use : uses) {
    if (Describe(use, manifest).empty()) __builtin_trap();
  }
  // A fuzzer cannot guess a checksum.
  manifest.table_checksum = ChecksumOf(table);
  const ExtentTable found = ParseExtentTable(table, manifest, uses, "fuzz/extents.bin");
  if (found.extents.size() != manifest.num_extents) __builtin_trap();
  for (const ContainerExtent& extent : found.extents) {
    const uint64_t size = manifest.files.at(extent.file).size;
    if (extent.bytes > size || extent.offset > size - extent.bytes) __builtin_trap();
  }
  if (ManifestText(ParseManifest(ManifestText(manifest), "again")) != ManifestText(manifest)) {
    __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Two layers, two experts: the corpus stays small.
  static const ModelConfig config =
      ParseModelConfig(PublishedConfig("k3-small", {.layers = 2, .experts = 2}), "config.json");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view table = end == std::string_view::npos ? "" : input.substr(end + 1);
  try {
    Open(input.substr(0, end), table, config);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) __builtin_trap();
  }
  return 0;
}
