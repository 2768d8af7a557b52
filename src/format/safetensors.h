#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace thimble {

/// Longest header accepted, as the reference implementation of the format has it.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// One tensor of a safetensors file.
struct SafetensorsEntry {
  std::string name;
  std::string_view dtype;  // as the format spells it, e.g. "BF16"; static storage
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // [begin, end) in the file, from its first byte
  uint64_t end = 0;
};

/// Parses the head of a safetensors file: eight bytes of header length (little-endian) and the JSON
/// header. `head` holds at least these, `file_size` is the size of the whole file; `source` names
/// it in messages. Entries come in the order of their data.
///
/// What it returns is proven: names are unique, begin <= end <= file_size, end - begin is the size
/// of dtype and shape, the data of all tensors fill the rest of the file exactly, without overlap
/// or hole. Anything else is Error(kBadModel) naming the file, the tensor, expected and found; a
/// file that ends too early is told apart, since it only needs to be downloaded again.
std::vector<SafetensorsEntry> ParseSafetensors(std::string_view head, uint64_t file_size,
                                               const std::string& source);

/// The size that the header of `file` states for the whole file; nothing where the file ends before
/// its header does. Error(kBadModel) where that is no header of safetensors.
std::optional<uint64_t> StatedSize(const File& file);

/// Reads the head of `file` and parses it. Error(kBadModel) where it is a foreign file
/// (io/foreign_file.h). Costs the header's length in memory for a moment.
std::vector<SafetensorsEntry> ReadSafetensors(const File& file);

/// "[12288, 1, 4]", for messages.
std::string FormatShape(const std::vector<uint64_t>& shape);

}  // namespace thimble
