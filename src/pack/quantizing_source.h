#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "format/container.h"
#include "format/model_config.h"
#include "pack/container_writer.h"

namespace thimble {

/// The weights of another source, quantised where that was asked for: BF16 experts become MXFP4,
/// the codes of all projections, then their scales, and what the manifest has as Q8 becomes that,
/// row by row. All else passes through. Holds one projection of an expert, or a few megabytes of
/// rows, before and after, and an expert's scales. Borrows `source`; uses as many threads as there
/// are cores.
class QuantizingSource : public ExtentSource {
 public:
  /// `config` and `manifest` are those of the new container; of `options` it looks at what to
  /// quantise.
  QuantizingSource(const ModelConfig& config, const ContainerManifest& manifest,
                   const WriteOptions& options, ExtentSource& source);
  /// Error(kBadModel), when all of an extent was read, where a weight that is quantised is not
  /// finite; Error(kRuntime) where what was made decodes to other values, which faulty memory makes
  /// happen.
  void Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) override;
  WeightLoss Loss() const override { return loss_; }

 private:
  // What is read and quantised at a time.
  struct Part {
    size_t rows;
    size_t cols;
  };
  /// The tensor of an extent that becomes Q8, or null.
  const ContainerTensor* Q8TensorOf(const ExtentUse& use) const;
  void TakeNext(const ExtentUse& use);
  void QuantizeNext(const ExtentUse& use);
  [[noreturn]] void Fail(ErrorCode code, const ExtentUse& use, const std::string& what) const;

  const ContainerManifest manifest_;
  const bool q8_trunk_;
  std::vector<Part> projections_;  // of an expert, in their order; none: left as they are
  ExtentSource& source_;
  ThreadPool pool_;
  std::vector<uint16_t> elements_;  // of the part
  std::vector<uint8_t> quantized_;  // the same, as stored, of an expert the codes; then the scales
  std::vector<uint8_t> scales_;     // of the expert so far
  size_t taken_ = 0;                // bytes of quantized_
  size_t next_ = 0;                 // projection of the expert, or row of the tensor
  uint64_t source_offset_ = 0;      // of the next part, in the extent as given
  WeightLoss loss_;
};

}  // namespace thimble
