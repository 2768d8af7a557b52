#include "engine/fingerprint.h"

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/checksum.h"
#include "io/file.h"

namespace thimble {
namespace {

// Digests rows of tensors; each file is opened once.
class WeightDigest {
 public:
  explicit WeightDigest(const TensorStore& store) : store_(store) {}

  void Add(const std::string& text) { checksum_.Update(text.data(), text.size()); }
  void Add(uint64_t number) { checksum_.Update(&number, sizeof(number)); }
  // Vectors only: containers code matrices, so vectors have the same bytes in both.
  void AddVector(const TensorExtent& extent) {
    THIMBLE_CHECK(!extent.is_coded());
    auto file = files_.find(extent.file);
    if (file == files_.end()) {
      file = files_.emplace(extent.file, File::Open(store_.files()[extent.file].path)).first;
    }
    std::vector<char> row(extent.RowBytes());
    file->second.ReadAt(extent.offset, row.size(), row.data());
    checksum_.Update(row.data(), row.size());
  }
  uint64_t Digest() const { return checksum_.Digest(); }

 private:
  const TensorStore& store_;
  Checksum checksum_;
  std::map<uint32_t, File> files_;
};

}  // namespace

uint64_t FingerprintOf(const ModelConfig& config, const TensorStore& store) {
  WeightDigest digest(store);
  for (const uint64_t size :
       {static_cast<uint64_t>(config.architecture), config.hidden_size, config.vocab_size,
        config.num_layers(), config.kda.ProjectionSize(), config.kda.head_dim,
        config.kda.conv_width, config.mla.CacheDim(), config.moe.num_experts, config.moe.top_k,
        static_cast<uint64_t>(config.moe.format)}) {
    digest.Add(size);
  }
  for (const LossyPart& part : store.lossy()) digest.Add(part.part + " " + part.format);
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    digest.AddVector(store.Layer(layer, TensorRole::kInputNorm));
    digest.AddVector(store.Layer(layer, TensorRole::kPostNorm));
    if (config.layers[layer].feed_forward == FeedForwardKind::kMoe) {
      digest.AddVector(store.Layer(layer, TensorRole::kRouterBias));
    }
  }
  digest.AddVector(store.Global(TensorRole::kFinalNorm));
  return digest.Digest();
}

}  // namespace thimble
