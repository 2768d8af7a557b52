#include "model/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "model/part_bench.h"

namespace thimble {
namespace {

constexpr size_t kMoeTokens = 29;

// docs/MODEL.md, router and latent MoE, for one token at a time.
class MoeReference {
 public:
  MoeReference(PartBench& bench, size_t layer) : config_(bench.config()) {
    const MoeConfig& moe = config_.moe;
    router_ = bench.Weights(layer, TensorRole::kRouter);
    bias_ = bench.Flat(layer, TensorRole::kRouterBias);
    if (moe.latent_size != 0) {
      down_ = bench.Weights(layer, TensorRole::kLatentDown);
      up_ = bench.Weights(layer, TensorRole::kLatentUp);
      norm_ = bench.Flat(layer, TensorRole::kLatentNorm);
    }
    shared_ = {bench.Weights(layer, TensorRole::kSharedGate),
               bench.Weights(layer, TensorRole::kSharedUp),
               bench.Weights(layer, TensorRole::kSharedDown)};
    std::vector<uint32_t> all(moe.num_experts);
    for (uint32_t expert = 0; expert < all.size(); ++expert) all[expert] = expert;
    bench.weights().Request(layer, all);
    for (size_t i = 0; i < all.size(); ++i) {
      const Lease<ExpertView> lease = bench.weights().Next();
      experts_[lease->expert] = {bench.Decode(lease->gate), bench.Decode(lease->up),
                                 bench.Decode(lease->down)};
    }
  }

  Vector Forward(const Vector& x) {
    const MoeConfig& moe = config_.moe;
    Vector scores = Product(router_, x);
    for (double& score : scores) score = Sigmoid(score);
    std::vector<uint32_t> chosen(moe.num_experts);
    for (uint32_t expert = 0; expert < chosen.size(); ++expert) chosen[expert] = expert;
    std::ranges::stable_sort(chosen, std::greater(),
                             [&](uint32_t e) { return scores[e] + bias_[e]; });
    chosen.resize(moe.top_k);
    double sum = 0;
    for (const uint32_t expert : chosen) sum += scores[expert];

    const Vector z = moe.latent_size != 0 ? Product(down_, x) : x;
    Vector routed(z.size(), 0.0);
    for (const uint32_t expert : chosen) {
      ++times_chosen_[expert];
      const Vector y = RunMlp(experts_.at(expert), z);
      const double weight = scores[expert] / sum * double{moe.scaling_factor};
      for (size_t i = 0; i < y.size(); ++i) routed[i] += weight * y[i];
    }
    if (moe.latent_size != 0) {
      routed = Product(up_, RmsNorm(routed, norm_, double{config_.rms_eps}));
    }
    const Vector shared = RunMlp(shared_, x);
    for (size_t i = 0; i < routed.size(); ++i) routed[i] += shared[i];
    return routed;
  }

  const std::map<uint32_t, size_t>& times_chosen() const { return times_chosen_; }

 private:
  struct MlpWeights {
    Matrix gate, up, down;
  };

  Vector RunMlp(const MlpWeights& mlp, const Vector& x) const {
    Vector inner = Product(mlp.gate, x);
    const Vector up = Product(mlp.up, x);
    const ActivationConfig& activation = config_.activation;
    for (size_t i = 0; i < inner.size(); ++i) {
      if (activation.situ_beta) {
        const double beta = double{*activation.situ_beta};
        const double linear = double{activation.situ_linear_beta};
        inner[i] = beta * std::tanh(inner[i] / beta) * Sigmoid(inner[i]) * linear *
                   std::tanh(up[i] / linear);
      } else {
        inner[i] = Silu(inner[i]) * up[i];
      }
    }
    return Product(mlp.down, inner);
  }

  const ModelConfig& config_;
  Matrix router_, down_, up_;
  Vector bias_, norm_;
  MlpWeights shared_;
  std::map<uint32_t, MlpWeights> experts_;
  std::map<uint32_t, size_t> times_chosen_;
};

// Kimi K3: experts in MXFP4 on a latent with a norm, SiTU. Kimi-Linear: BF16 at full width, SiLU.
class MoeTest : public testing::TestWithParam<Architecture> {
 protected:
  // The outputs of all inputs, in pieces of `width` tokens.
  std::vector<float> Run(PartBench& bench, size_t width) const {
    const ModelConfig& config = bench.config();
    const uint64_t start = bench.carver().position();
    Mlp shared(config, kMoeTokens, bench.carver());
    MoeLayer moe(config, kMoeTokens, bench.carver());
    const LayerParams params = bench.Params(layer_);
    std::vector<float> outputs(inputs_.size());
    for (size_t first = 0; first < kMoeTokens; first += width) {
      const size_t count = std::min(width, kMoeTokens - first);
      const Rows x = bench.Packed(inputs_, first, count);
      moe.Forward(bench.executor(), bench.weights(), shared, layer_, params, count, x,
                  {outputs.data() + first * config.hidden_size, config.hidden_size});
    }
    bench.carver().Restart(start);
    return outputs;
  }

  PartBench bench_{BuilderOf(GetParam())};
  const size_t layer_ = bench_.MoeLayerIndex();
  const std::vector<float> inputs_ = bench_.Inputs(kMoeTokens, 3);
};

TEST_P(MoeTest, OutputsEqualTheReference) {
  MoeReference reference(bench_, layer_);
  Vector expected;
  for (size_t token = 0; token < kMoeTokens; ++token) {
    const Vector y = reference.Forward(bench_.InputRow(inputs_, token));
    expected.insert(expected.end(), y.begin(), y.end());
  }
  ASSERT_EQ(reference.times_chosen().size(), bench_.config().moe.num_experts)
      << "an expert without a token would not be tested";
  EXPECT_TRUE(Near(Run(bench_, kMoeTokens), expected, 1e-5));
}

TEST_P(MoeTest, BitsDependOnNeitherCutsNorThreadsNorBlocks) {
  const std::vector<float> expected = Run(bench_, kMoeTokens);
  for (const size_t threads : {1, 3}) {
    PartBench bench(BuilderOf(GetParam()), threads);
    bench.weights().block_rows = threads == 1 ? 5 : SIZE_MAX;
    for (const size_t width : {1, 4, 28}) {
      EXPECT_TRUE(EqualBits(Run(bench, width), expected))
          << threads << " threads, pieces of " << width;
    }
  }
}

TEST_P(MoeTest, BitsDoNotDependOnTheOrderInWhichExpertsArrive) {
  const std::vector<float> expected = Run(bench_, kMoeTokens);
  bench_.weights().reverse_experts = true;
  for (const size_t width : {1, 7, 29}) {
    EXPECT_TRUE(EqualBits(Run(bench_, width), expected)) << "pieces of " << width;
  }
  EXPECT_EQ(bench_.weights().num_lent(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, MoeTest,
                         testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                         NameOfModel);

}  // namespace
}  // namespace thimble
