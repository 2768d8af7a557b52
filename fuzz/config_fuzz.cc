// Any bytes, taken as config.json: either an Error or a configuration whose sizes can be worked
// with.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "format/model_config.h"
#include "format/model_summary.h"
#include "format/tensor_names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const thimble::ModelConfig config = thimble::ParseModelConfig(text, "fuzz/config.json");
    if (config.layers.empty() || config.moe.top_k > config.moe.num_experts) __builtin_trap();
    const thimble::ModelSummary summary = thimble::Summarize(config);
    if (summary.total_parameters < summary.active_parameters) __builtin_trap();
    const thimble::TensorNames names(config);
    if (names.Find(names.NameOf(names.size() - 1)).slot != names.size() - 1) __builtin_trap();
  } catch (const thimble::Error& error) {
    if (error.code() != thimble::ErrorCode::kBadModel) __builtin_trap();
  }
  return 0;
}
