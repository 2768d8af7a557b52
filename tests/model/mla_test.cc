#include "model/mla.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "model/part_bench.h"

namespace thimble {
namespace {

// Over more than two of the attention's blocks of 64 positions.
constexpr size_t kMlaTokens = 150;

// docs/MODEL.md, MLA, as it is defined: keys and values of each head are built.
class MlaReference {
 public:
  MlaReference(PartBench& bench, size_t layer) : mla_(bench.config().mla) {
    if (mla_.q_lora_rank == 0) {
      query_ = bench.Weights(layer, TensorRole::kQuery);
    } else {
      query_a_ = bench.Weights(layer, TensorRole::kQueryA);
      query_norm_ = bench.Flat(layer, TensorRole::kQueryANorm);
      query_ = bench.Weights(layer, TensorRole::kQueryB);
    }
    kv_a_ = bench.Weights(layer, TensorRole::kKvA);
    kv_norm_ = bench.Flat(layer, TensorRole::kKvANorm);
    kv_b_ = bench.Weights(layer, TensorRole::kKvB);
    if (mla_.output_gate) gate_ = bench.Weights(layer, TensorRole::kGate);
    out_ = bench.Weights(layer, TensorRole::kOut);
  }

  Vector Step(const Vector& x) {
    Vector row = Product(kv_a_, x);
    const Vector latent = RmsNorm(Slice(row, 0, mla_.kv_lora_rank), kv_norm_, 1e-6);
    std::ranges::copy(latent, row.begin());
    rows_.push_back(row);
    const Vector query = mla_.q_lora_rank == 0
                             ? Product(query_, x)
                             : Product(query_, RmsNorm(Product(query_a_, x), query_norm_, 1e-6));
    Vector heads;
    for (size_t h = 0; h < mla_.num_heads; ++h) {
      const Vector o = Head(h, Slice(query, h * mla_.QueryDim(), mla_.QueryDim()));
      heads.insert(heads.end(), o.begin(), o.end());
    }
    if (mla_.output_gate) {
      const Vector gate = Product(gate_, x);
      for (size_t i = 0; i < heads.size(); ++i) heads[i] *= Sigmoid(gate[i]);
    }
    return Product(out_, heads);
  }

  /// What a session keeps of each token: the normalised latent and the extra key part.
  const Matrix& rows() const { return rows_; }

 private:
  Vector Head(size_t h, const Vector& query) const {
    const size_t head_rows = mla_.nope_dim + mla_.value_dim;
    const auto first = kv_b_.begin() + static_cast<std::ptrdiff_t>(h * head_rows);
    const auto middle = first + static_cast<std::ptrdiff_t>(mla_.nope_dim);
    const Matrix to_key(first, middle);
    const Matrix to_value(middle, first + static_cast<std::ptrdiff_t>(head_rows));
    Vector scores;
    for (const Vector& row : rows_) {
      Vector key = Product(to_key, Slice(row, 0, mla_.kv_lora_rank));
      key.insert(key.end(), row.begin() + static_cast<std::ptrdiff_t>(mla_.kv_lora_rank),
                 row.end());
      scores.push_back(Dot(query, key) / std::sqrt(static_cast<double>(mla_.QueryDim())));
    }
    const double largest = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    Vector o(mla_.value_dim, 0.0);
    for (size_t position = 0; position < rows_.size(); ++position) {
      const Vector value = Product(to_value, Slice(rows_[position], 0, mla_.kv_lora_rank));
      for (size_t i = 0; i < o.size(); ++i) o[i] += scores[position] / sum * value[i];
    }
    return o;
  }

  const MlaConfig& mla_;
  Matrix query_, query_a_, kv_a_, kv_b_, gate_, out_;
  Vector query_norm_, kv_norm_;
  Matrix rows_;
};

// Kimi K3: low-rank query, output gate. Kimi-Linear: plain query, no gate.
class MlaTest : public testing::TestWithParam<Architecture> {
 protected:
  MixerRun<MlaMixer> NewRun(PartBench& bench, LatentFormat latents = LatentFormat::kF32) const {
    return {bench, layer_,
            MlaMixer(bench.config(), {PartBench::kMaxTokens, bench.num_threads(), latents},
                     bench.carver()),
            latents};
  }
  Vector Expected() {
    MlaReference reference(bench_, layer_);
    Vector expected;
    for (size_t token = 0; token < kMlaTokens; ++token) {
      const Vector y = reference.Step(bench_.InputRow(inputs_, token));
      expected.insert(expected.end(), y.begin(), y.end());
    }
    return expected;
  }

  PartBench bench_{BuilderOf(GetParam())};
  const size_t layer_ = bench_.LayerWith(MixerKind::kMla);
  const std::vector<float> inputs_ = bench_.Inputs(kMlaTokens, 3);
};

TEST_P(MlaTest, OutputsAndLatentsEqualTheReference) {
  auto run = NewRun(bench_);
  StateCache state = run.NewState();
  const std::vector<float> outputs = run.InPieces(state, inputs_, kMlaTokens);
  EXPECT_TRUE(Near(outputs, Expected(), 1e-5));

  MlaReference reference(bench_, layer_);
  Vector rows;
  for (size_t token = 0; token < kMlaTokens; ++token) {
    reference.Step(bench_.InputRow(inputs_, token));
    rows.insert(rows.end(), reference.rows().back().begin(), reference.rows().back().end());
  }
  const auto* found = reinterpret_cast<const float*>(state.Latents(layer_));
  EXPECT_TRUE(Near({found, found + rows.size()}, rows, 1e-5));
}

// The bounds are a few times the formats' own rounding: 2^-9 and 2^-4 of each latent.
TEST_P(MlaTest, NarrowLatentsStayNearAndKeepTheirBits) {
  const Vector expected = Expected();
  const std::pair<LatentFormat, double> formats[] = {{LatentFormat::kBF16, 0.01},
                                                     {LatentFormat::kFP8, 0.15}};
  for (const auto& [format, share] : formats) {
    auto run = NewRun(bench_, format);
    StateCache whole = run.NewState();
    const std::vector<float> outputs = run.InPieces(whole, inputs_, kMlaTokens);
    EXPECT_TRUE(Near(outputs, expected, share)) << NameOf(format);
    EXPECT_FALSE(Near(outputs, expected, 1e-5)) << NameOf(format) << " rounded nothing";
    run.ExpectSameBits(inputs_, {1, 7, 64}, outputs, CarriedBytes(whole));
  }
}

TEST_P(MlaTest, BitsDependOnNeitherCutsNorThreadsNorBlocks) {
  auto run = NewRun(bench_);
  StateCache whole = run.NewState();
  const std::vector<float> expected = run.InPieces(whole, inputs_, kMlaTokens);
  for (const size_t threads : {1, 3}) {
    SCOPED_TRACE(threads);
    PartBench bench(BuilderOf(GetParam()), threads);
    bench.weights().block_rows = threads == 1 ? 1 : SIZE_MAX;
    NewRun(bench).ExpectSameBits(inputs_, {1, 7, 64, 149}, expected, CarriedBytes(whole));
  }
}

TEST_P(MlaTest, ATokenDoesNotSeeLaterOnes) {
  auto run = NewRun(bench_);
  StateCache state = run.NewState();
  std::vector<float> expected = run.InPieces(state, inputs_, kMlaTokens);
  std::vector<float> changed = inputs_;
  const size_t hidden = bench_.config().hidden_size;
  for (size_t i = 100 * hidden; i < 101 * hidden; ++i) changed[i] = -changed[i];
  StateCache other = run.NewState();
  std::vector<float> found = run.InPieces(other, changed, kMlaTokens);
  EXPECT_FALSE(EqualBits(found, expected));
  expected.resize(100 * hidden);
  found.resize(100 * hidden);
  EXPECT_TRUE(EqualBits(found, expected));
}

TEST_P(MlaTest, SessionsOfOneSweepDoNotMeet) {
  const std::vector<float> inputs[] = {bench_.Inputs(70, 4), bench_.Inputs(70, 5)};
  NewRun(bench_).ExpectSessionsDoNotMeet(inputs);
}

INSTANTIATE_TEST_SUITE_P(Models, MlaTest,
                         testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                         NameOfModel);

}  // namespace
}  // namespace thimble
