#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "format/container.h"
#include "format/model_config.h"
#include "pack/container_writer.h"

namespace thimble {

/// The weights of another source with what a container calls lossy quantised: BF16 experts become
/// MXFP4, each projection its codes, then its scales. All else passes through. Holds one projection
/// of an expert, before and after. Borrows its arguments; uses as many threads as there are cores.
class QuantizingSource : public ExtentSource {
 public:
  /// `config` and `manifest` are those of the container.
  QuantizingSource(const ModelConfig& config, const ContainerManifest& manifest,
                   ExtentSource& source);
  /// Error(kBadModel) where a weight that is quantised is not finite, Error(kRuntime) where what
  /// was made decodes to other values, which faulty memory makes happen.
  void Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) override;
  WeightLoss Loss() const override { return loss_; }

 private:
  struct Projection {
    size_t rows;
    size_t cols;
  };
  void QuantizeNext(const ExtentUse& use);

  std::vector<Projection> projections_;  // of an expert, in their order; none: left as they are
  ExtentSource& source_;
  ThreadPool pool_;
  std::vector<uint16_t> elements_;  // of the projection
  std::vector<uint8_t> quantized_;  // the same, as stored
  size_t taken_ = 0;                // bytes of quantized_
  size_t next_ = 0;                 // projection
  uint64_t source_offset_ = 0;      // of the next projection, in the expert as given
  WeightLoss loss_;
};

}  // namespace thimble
