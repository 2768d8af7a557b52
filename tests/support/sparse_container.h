#pragma once

#include <filesystem>
#include <string>

#include "format/checksum.h"
#include "format/container.h"
#include "format/model_config.h"
#include "format/model_summary.h"
#include "format/published_models.h"
#include "pack/container_layout.h"
#include "support/file_edit.h"

namespace thimble {

/// Makes in `dir` a container of a published model, in full size, whose data files are holes: it
/// opens like one of real weights and takes a few MB of disk. Its checksums are not those of its
/// bytes, so it does not verify.
inline void WriteSparseContainer(const std::filesystem::path& dir,
                                 const std::string& architecture) {
  const std::string config_text = PublishedConfig(architecture);
  const ModelConfig config = ParseModelConfig(config_text, "config.json");
  LayoutOptions options;
  options.source = "holes";
  options.code = false;
  options.stored = [&](size_t, const TensorSpec& spec) {
    return ContainerTensor{std::string(spec.name), PublishedType(config, spec.role), spec.rows,
                           spec.cols};
  };
  ContainerLayout layout = LayOutContainer(config, options);
  const std::string table = ExtentTableBytes(layout.extents);
  layout.manifest.table_checksum = ChecksumOf(table);
  WriteText(dir / "config.json", config_text);
  WriteText(dir / kExtentTableFile, table);
  WriteText(dir / kManifestFile, ManifestText(layout.manifest));
  for (const ContainerFile& file : layout.manifest.files) {
    WriteText(dir / file.name, "");
    std::filesystem::resize_file(dir / file.name, file.size);
  }
}

}  // namespace thimble
