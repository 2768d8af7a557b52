#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "format/tensor_store.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"
#include "model/executor.h"
#include "model/layer_params.h"
#include "model/state_cache.h"
#include "model/sweep.h"
#include "support/checkpoint_builder.h"
#include "support/ram_weights.h"
#include "support/temp_dir.h"

namespace thimble {

/// Numbers in double precision, for references that follow docs/MODEL.md line by line.
using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

inline double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline Vector Product(const Matrix& w, std::span<const double> x) {
  Vector y;
  for (const Vector& row : w) y.push_back(Dot(row, x));
  return y;
}
inline double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }
inline double Silu(double z) { return z * Sigmoid(z); }
inline Vector RmsNorm(Vector x, std::span<const double> weight, double eps) {
  const double root = std::sqrt(Dot(x, x) / static_cast<double>(x.size()) + eps);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= weight[i] / root;
  return x;
}
/// Elements [first, first + count).
inline Vector Slice(const Vector& x, size_t first, size_t count) {
  const auto begin = x.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

/// A small model whose parts can be run by themselves, with its weights in memory.
class PartBench {
 public:
  static constexpr size_t kMaxTokens = 160;

  explicit PartBench(const CheckpointBuilder& builder, size_t num_threads = 2)
      : config_(Written(builder)),
        store_(TensorStore::Open(dir_.path(), config_)),
        weights_(config_, store_),
        pool_(num_threads),
        executor_(BestKernels(), pool_, weights_),
        workspace_(budget_, "workspace", 64 << 20),
        carver_(workspace_) {}

  const ModelConfig& config() const { return config_; }
  const Executor& executor() const { return executor_; }
  RamWeights& weights() { return weights_; }
  MemoryBudget& budget() { return budget_; }
  Carver& carver() { return carver_; }
  size_t num_threads() const { return pool_.num_threads(); }

  size_t LayerWith(MixerKind mixer) const {
    for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (config_.layers[layer].mixer == mixer) return layer;
    }
    throw std::runtime_error("no layer with this mixer");
  }
  size_t MoeLayerIndex() const {
    for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (config_.layers[layer].feed_forward == FeedForwardKind::kMoe) return layer;
    }
    throw std::runtime_error("no MoE layer");
  }

  Matrix Decode(const WeightMatrix& w) const {
    std::vector<float> values(w.rows * w.cols);
    BestKernels().decode(w, values.data());
    Matrix matrix;
    for (size_t row = 0; row < w.rows; ++row) {
      matrix.emplace_back(values.begin() + static_cast<std::ptrdiff_t>(row * w.cols),
                          values.begin() + static_cast<std::ptrdiff_t>((row + 1) * w.cols));
    }
    return matrix;
  }
  Matrix Weights(size_t layer, TensorRole role) {
    const size_t block_rows = std::exchange(weights_.block_rows, SIZE_MAX);
    const Lease<WeightMatrix> rows = weights_.Acquire({layer, role}, 0);
    weights_.block_rows = block_rows;
    return Decode(*rows);
  }
  /// All elements of a tensor in a row.
  Vector Flat(size_t layer, TensorRole role) {
    Vector flat;
    for (const Vector& row : Weights(layer, role)) flat.insert(flat.end(), row.begin(), row.end());
    return flat;
  }

  LayerParams Params(size_t layer) {
    LayerParams params = LayerParams::Lay(config_, carver_);
    params.Load(config_, layer, LayerTensors(config_, config_.layers[layer]), executor_);
    return params;
  }

  /// Normalised inputs of a sublayer: `num_tokens` rows of about unit variance.
  std::vector<float> Inputs(size_t num_tokens, uint32_t seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> rows(num_tokens * config_.hidden_size);
    for (float& value : rows) value = normal(random);
    return rows;
  }
  Vector InputRow(const std::vector<float>& inputs, size_t token) const {
    const auto begin = inputs.begin() + static_cast<std::ptrdiff_t>(token * config_.hidden_size);
    return {begin, begin + static_cast<std::ptrdiff_t>(config_.hidden_size)};
  }
  /// The rows of `inputs` from `first` on, as a part takes them; valid until the next call.
  Rows Packed(const std::vector<float>& inputs, size_t first, size_t count) {
    const size_t hidden = config_.hidden_size;
    packed_.assign(count * PackedCols(hidden), 0.0F);
    copy_.assign(inputs.begin() + static_cast<std::ptrdiff_t>(first * hidden),
                 inputs.begin() + static_cast<std::ptrdiff_t>((first + count) * hidden));
    const Rows rows = {packed_.data(), PackedCols(hidden)};
    executor_.Pack({copy_.data(), hidden}, hidden, count, rows);
    return rows;
  }

 private:
  ModelConfig Written(const CheckpointBuilder& builder) const {
    builder.Write(dir_.path());
    return ReadModelConfig(dir_.path());
  }

  TempDir dir_;
  ModelConfig config_;
  TensorStore store_;
  MemoryBudget budget_{uint64_t{1} << 30};
  RamWeights weights_;
  ThreadPool pool_;
  Executor executor_;
  Buffer workspace_;
  Carver carver_;
  std::vector<float> packed_;
  std::vector<float> copy_;
};

/// Whether each of `found` is near its number in `expected`, by a share of the largest of them.
inline testing::AssertionResult Near(const std::vector<float>& found, const Vector& expected,
                                     double share) {
  if (found.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  if (largest == 0) return testing::AssertionFailure() << "nothing but zeros is expected";
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::abs(double{found[i]} - expected[i]) <= share * largest) continue;
    return testing::AssertionFailure() << "number " << i << ": " << found[i] << ", expected "
                                       << expected[i] << " (largest " << largest << ")";
  }
  return testing::AssertionSuccess();
}

inline bool EqualBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The bytes of all that a session carries.
inline std::string CarriedBytes(StateCache& state) {
  std::string bytes;
  for (const std::span<std::byte> piece : state.Pieces(state.num_tokens())) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return bytes;
}

inline CheckpointBuilder BuilderOf(Architecture architecture) {
  return architecture == Architecture::kKimiK3 ? CheckpointBuilder::KimiK3()
                                               : CheckpointBuilder::KimiLinear();
}
inline const char* NameOfModel(const testing::TestParamInfo<Architecture>& model) {
  return model.param == Architecture::kKimiK3 ? "KimiK3" : "KimiLinear";
}

/// A mixer of one layer, KdaMixer or MlaMixer, and the sessions that it advances.
template <typename Mixer>
class MixerRun {
 public:
  MixerRun(PartBench& bench, size_t layer, Mixer mixer, LatentFormat latents = LatentFormat::kF32)
      : bench_(bench),
        layer_(layer),
        mixer_(std::move(mixer)),
        latents_(latents),
        params_(bench.Params(layer)) {}

  StateCache NewState() const {
    return StateCache(bench_.config(), PartBench::kMaxTokens, bench_.budget(), latents_);
  }

  /// Advances `states` in one sweep, each by `count` rows of its inputs from `first` on; returns
  /// the outputs of one after the other.
  std::vector<float> Advance(std::span<StateCache*> states,
                             std::span<const std::vector<float>> inputs, size_t first,
                             size_t count) {
    std::vector<Span> spans;
    std::vector<float> together;
    const size_t hidden = bench_.config().hidden_size;
    for (size_t i = 0; i < states.size(); ++i) {
      spans.push_back({states[i], i * count, count});
      together.insert(together.end(),
                      inputs[i].begin() + static_cast<std::ptrdiff_t>(first * hidden),
                      inputs[i].begin() + static_cast<std::ptrdiff_t>((first + count) * hidden));
    }
    const size_t num_tokens = states.size() * count;
    std::vector<float> outputs(num_tokens * hidden);
    const Rows x = bench_.Packed(together, 0, num_tokens);
    mixer_.Forward(bench_.executor(), layer_, params_, {spans, num_tokens}, x,
                   {outputs.data(), hidden});
    for (StateCache* state : states) state->CommitAdvance(count);
    return outputs;
  }

  /// Takes one session through all of `inputs`, cut into pieces of `width` tokens.
  std::vector<float> InPieces(StateCache& state, const std::vector<float>& inputs, size_t width) {
    const size_t num_tokens = inputs.size() / bench_.config().hidden_size;
    std::vector<float> outputs;
    StateCache* states[] = {&state};
    for (size_t first = 0; first < num_tokens; first += width) {
      const std::vector<float> piece =
          Advance(states, {&inputs, 1}, first, std::min(width, num_tokens - first));
      outputs.insert(outputs.end(), piece.begin(), piece.end());
    }
    return outputs;
  }

  /// New sessions that take `inputs` in pieces of each of `widths` must give these outputs and
  /// carry these bytes.
  void ExpectSameBits(const std::vector<float>& inputs, std::initializer_list<size_t> widths,
                      const std::vector<float>& outputs, const std::string& carried) {
    for (const size_t width : widths) {
      SCOPED_TRACE(width);
      StateCache state = NewState();
      EXPECT_TRUE(EqualBits(InPieces(state, inputs, width), outputs));
      EXPECT_TRUE(CarriedBytes(state) == carried);
    }
  }

  /// Two sessions must give and carry the same bits in shared sweeps as each alone.
  void ExpectSessionsDoNotMeet(std::span<const std::vector<float>, 2> inputs) {
    const size_t num_tokens = inputs[0].size() / bench_.config().hidden_size;
    StateCache alone[] = {NewState(), NewState()};
    StateCache together[] = {NewState(), NewState()};
    std::vector<float> expected = InPieces(alone[0], inputs[0], num_tokens);
    const std::vector<float> second = InPieces(alone[1], inputs[1], num_tokens);
    EXPECT_FALSE(EqualBits(expected, second));
    expected.insert(expected.end(), second.begin(), second.end());
    StateCache* states[] = {&together[0], &together[1]};
    EXPECT_TRUE(EqualBits(Advance(states, inputs, 0, num_tokens), expected));
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(CarriedBytes(together[i]) == CarriedBytes(alone[i])) << i;
    }
  }

 private:
  PartBench& bench_;
  size_t layer_;
  Mixer mixer_;
  LatentFormat latents_;
  LayerParams params_;
};

}  // namespace thimble
