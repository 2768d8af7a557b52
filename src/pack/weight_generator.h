#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"

namespace thimble {

/// Names one stream of random numbers: a tensor of a model of some seed.
struct StreamKey {
  uint64_t seed = 0;
  uint64_t layer = 0;   // all ones for what lies outside the layers
  uint64_t tensor = 0;  // a role, or an expert and its piece
};

/// Which values a tensor of the trunk takes.
struct Distribution {
  enum class Kind : uint8_t {
    kNormal,    // of `mean` and `deviation`
    kLogRate,   // log of a rate uniform in [1, 16): A_log as models are initialised
    kTimeStep,  // inverse softplus of a step log-uniform in [0.001, 0.1): dt_bias, likewise
  };
  Kind kind = Kind::kNormal;
  double mean = 0;
  double deviation = 1;
  bool operator<(const Distribution& other) const {
    return std::tie(kind, mean, deviation) < std::tie(other.kind, other.mean, other.deviation);
  }
};

/// Random weights as functions of their place: any part of a tensor can be made at any time, in any
/// order, on any thread, and is the same. Each element is a quantile chosen by 16 bits of a counter
/// hashed with the key, so that values and exponents spread as those of real weights do. Uses the
/// threads it is given; called from one.
class WeightGenerator {
 public:
  explicit WeightGenerator(ThreadPool& pool) : pool_(pool) {}

  /// Elements of a BF16 or F32 tensor whose first is `first`; elements from `num_elements` on (the
  /// padding) are zero.
  struct Elements {
    DType dtype = DType::kBF16;
    uint64_t first = 0;
    uint64_t num_elements = 0;
  };
  void Fill(const StreamKey& key, const Distribution& distribution, const Elements& elements,
            std::span<std::byte> out);

  /// MXFP4 weights from a normal distribution of `deviation`: codes from the byte `first` on, or
  /// scales. Both follow from the largest magnitude of each group of 32, drawn from `key`.
  void FillCodes(const StreamKey& key, double deviation, uint64_t first, std::span<std::byte> out);
  void FillScales(const StreamKey& key, double deviation, uint64_t first, std::span<std::byte> out);

 private:
  struct GroupTable;
  const GroupTable& GroupsOf(double deviation);
  template <typename T>
  const std::vector<T>& TableOf(const Distribution& distribution);

  ThreadPool& pool_;
  std::map<Distribution, std::vector<uint16_t>> bf16_tables_;
  std::map<Distribution, std::vector<uint32_t>> f32_tables_;
  std::map<double, std::shared_ptr<const GroupTable>> group_tables_;
};

}  // namespace thimble
