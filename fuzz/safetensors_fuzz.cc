// Any bytes, taken as a whole safetensors file: either an Error or entries that tile the file.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "format/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    uint64_t end = 0;
    for (const auto& entry : thimble::ParseSafetensors(file, size, "fuzz.safetensors")) {
      if (end != 0 && entry.begin != end) __builtin_trap();
      end = entry.end;
      if (entry.begin > end || end > size) __builtin_trap();
    }
    if (end != 0 && end != size) __builtin_trap();
  } catch (const thimble::Error& error) {
    if (error.code() != thimble::ErrorCode::kBadModel) __builtin_trap();
  }
  return 0;
}
