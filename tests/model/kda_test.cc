#include "model/kda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "model/part_bench.h"

namespace thimble {
namespace {

constexpr size_t kKdaTokens = 23;

// docs/MODEL.md, KDA, for one layer and one session.
class KdaReference {
 public:
  KdaReference(PartBench& bench, size_t layer) : bench_(bench), kda_(bench.config().kda) {
    const TensorRole projections[] = {TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue};
    const TensorRole taps[] = {TensorRole::kQueryConv, TensorRole::kKeyConv,
                               TensorRole::kValueConv};
    for (size_t s = 0; s < 3; ++s) {
      projections_[s] = bench.Weights(layer, projections[s]);
      taps_[s] = bench.Flat(layer, taps[s]);
      raw_[s].assign(kda_.conv_width - 1, Vector(kda_.ProjectionSize(), 0.0));
    }
    decay_a_ = bench.Weights(layer, TensorRole::kDecayA);
    decay_b_ = bench.Weights(layer, TensorRole::kDecayB);
    dt_bias_ = bench.Flat(layer, TensorRole::kDtBias);
    a_log_ = bench.Flat(layer, TensorRole::kALog);
    beta_ = bench.Weights(layer, TensorRole::kBeta);
    if (kda_.full_rank_gate) {
      gate_ = bench.Weights(layer, TensorRole::kGate);
    } else {
      gate_a_ = bench.Weights(layer, TensorRole::kGateA);
      gate_b_ = bench.Weights(layer, TensorRole::kGateB);
    }
    out_norm_ = bench.Flat(layer, TensorRole::kOutNorm);
    out_ = bench.Weights(layer, TensorRole::kOut);
    const size_t dim = kda_.head_dim;
    states_.assign(kda_.num_heads, Matrix(dim, Vector(dim, 0.0)));
  }

  Vector Step(const Vector& x) {
    const std::array<Vector, 3> qkv = {Convolved(0, x), Convolved(1, x), Convolved(2, x)};
    const Vector z = Product(decay_b_, Product(decay_a_, x));
    const Vector beta = Product(beta_, x);
    const Vector gate =
        kda_.full_rank_gate ? Product(gate_, x) : Product(gate_b_, Product(gate_a_, x));
    Vector heads;
    for (size_t h = 0; h < kda_.num_heads; ++h) {
      const Vector o = Head(h, qkv, z, Sigmoid(beta[h]));
      for (size_t i = 0; i < o.size(); ++i) {
        heads.push_back(o[i] * Sigmoid(gate[h * kda_.head_dim + i]));
      }
    }
    return Product(out_, heads);
  }

  const Matrix& raw(size_t s) const { return raw_[s]; }
  const Matrix& state(size_t head) const { return states_[head]; }

 private:
  Vector Convolved(size_t s, const Vector& x) {
    raw_[s].push_back(Product(projections_[s], x));
    const size_t width = kda_.conv_width;
    Vector y(kda_.ProjectionSize(), 0.0);
    for (size_t channel = 0; channel < y.size(); ++channel) {
      for (size_t tap = 0; tap < width; ++tap) {
        y[channel] += taps_[s][channel * width + tap] * raw_[s][tap][channel];
      }
      y[channel] = Silu(y[channel]);
    }
    raw_[s].erase(raw_[s].begin());
    return y;
  }

  static Vector L2(Vector x) {
    const double root = std::sqrt(Dot(x, x) + 1e-6);
    for (double& value : x) value /= root;
    return x;
  }

  Vector Head(size_t h, const std::array<Vector, 3>& qkv, const Vector& z, double beta) {
    const size_t dim = kda_.head_dim;
    const size_t at = h * dim;
    const Vector q = L2(Slice(qkv[0], at, dim));
    const Vector k = L2(Slice(qkv[1], at, dim));
    const Vector v = Slice(qkv[2], at, dim);
    const double a = std::exp(a_log_[h]);
    Matrix& state = states_[h];
    for (size_t key = 0; key < dim; ++key) {
      const double decay = z[at + key] + dt_bias_[at + key];
      const double g = kda_.gate_lower_bound ? double{*kda_.gate_lower_bound} * Sigmoid(a * decay)
                                             : -a * std::log1p(std::exp(decay));
      for (double& value : state[key]) value *= std::exp(g);
    }
    Vector o(dim, 0.0);
    for (size_t value = 0; value < dim; ++value) {
      double error = v[value];
      for (size_t key = 0; key < dim; ++key) error -= state[key][value] * k[key];
      for (size_t key = 0; key < dim; ++key) {
        state[key][value] += k[key] * beta * error;
        o[value] += state[key][value] * q[key] / std::sqrt(static_cast<double>(dim));
      }
    }
    return RmsNorm(o, out_norm_, double{bench_.config().rms_eps});
  }

  PartBench& bench_;
  const KdaConfig& kda_;
  Matrix projections_[3];
  Vector taps_[3];  // [channel, tap]
  Matrix raw_[3];   // the last conv_width - 1 projections, oldest first
  Matrix decay_a_, decay_b_, beta_, gate_, gate_a_, gate_b_, out_;
  Vector dt_bias_, a_log_, out_norm_;
  std::vector<Matrix> states_;  // [head][key][value]
};

// Kimi K3: bounded decay, full-rank gate. Kimi-Linear: softplus decay, low-rank gate.
class KdaTest : public testing::TestWithParam<Architecture> {
 protected:
  MixerRun<KdaMixer> NewRun(PartBench& bench) const {
    return {bench, layer_, KdaMixer(bench.config(), PartBench::kMaxTokens, bench.carver())};
  }

  PartBench bench_{BuilderOf(GetParam())};
  const size_t layer_ = bench_.LayerWith(MixerKind::kKda);
  const std::vector<float> inputs_ = bench_.Inputs(kKdaTokens, 3);
};

TEST_P(KdaTest, OutputsAndStateEqualTheReference) {
  auto run = NewRun(bench_);
  StateCache state = run.NewState();
  KdaReference reference(bench_, layer_);
  const std::vector<float> outputs = run.InPieces(state, inputs_, kKdaTokens);
  Vector expected;
  for (size_t token = 0; token < kKdaTokens; ++token) {
    const Vector y = reference.Step(bench_.InputRow(inputs_, token));
    expected.insert(expected.end(), y.begin(), y.end());
  }
  EXPECT_TRUE(Near(outputs, expected, 1e-5));

  const KdaConfig& kda = bench_.config().kda;
  const size_t history_rows = kda.conv_width - 1;
  Vector history;
  for (size_t s = 0; s < 3; ++s) {
    for (const Vector& raw : reference.raw(s))
      history.insert(history.end(), raw.begin(), raw.end());
  }
  const float* found = state.KdaHistory(layer_);
  EXPECT_TRUE(Near({found, found + 3 * history_rows * kda.ProjectionSize()}, history, 1e-5));
  Vector states;
  for (size_t head = 0; head < kda.num_heads; ++head) {
    for (const Vector& row : reference.state(head)) {
      states.insert(states.end(), row.begin(), row.end());
    }
  }
  found = state.KdaState(layer_);
  EXPECT_TRUE(Near({found, found + states.size()}, states, 1e-5));
}

TEST_P(KdaTest, BitsDependOnNeitherCutsNorThreadsNorBlocks) {
  auto run = NewRun(bench_);
  StateCache whole = run.NewState();
  const std::vector<float> expected = run.InPieces(whole, inputs_, kKdaTokens);
  for (const size_t threads : {1, 3}) {
    SCOPED_TRACE(threads);
    PartBench bench(BuilderOf(GetParam()), threads);
    bench.weights().block_rows = threads == 1 ? 5 : SIZE_MAX;
    NewRun(bench).ExpectSameBits(inputs_, {1, 2, 3, 7, 23}, expected, CarriedBytes(whole));
  }
}

TEST_P(KdaTest, SessionsOfOneSweepDoNotMeet) {
  const std::vector<float> inputs[] = {inputs_, bench_.Inputs(kKdaTokens, 4)};
  NewRun(bench_).ExpectSessionsDoNotMeet(inputs);
}

TEST_P(KdaTest, ACopiedStateGoesOnAsTheOriginal) {
  auto run = NewRun(bench_);
  StateCache state = run.NewState();
  run.InPieces(state, inputs_, 5);
  StateCache copy = run.NewState();
  const auto from = state.Pieces(kKdaTokens);
  const auto to = copy.Pieces(kKdaTokens);
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i], to[i].begin());
  copy.Restore(kKdaTokens);
  const std::vector<float> more = bench_.Inputs(6, 9);
  const std::vector<float> expected = run.InPieces(state, more, 6);
  EXPECT_TRUE(EqualBits(run.InPieces(copy, more, 4), expected));
  StateCache empty = run.NewState();
  EXPECT_FALSE(EqualBits(run.InPieces(empty, more, 6), expected));
}

INSTANTIATE_TEST_SUITE_P(Models, KdaTest,
                         testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                         NameOfModel);

}  // namespace
}  // namespace thimble
