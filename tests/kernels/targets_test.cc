#include <algorithm>
#include <iterator>

#include "kernels/kernel_test_util.h"

namespace thimble {
namespace {

/// Outputs of every kernel on fixed pseudo-random inputs, one after the other.
class AllOutputs {
 public:
  explicit AllOutputs(const Kernels& kernels) : kernels_(kernels) {
    for (const size_t n : kLengths) Vectors(n);
    for (const size_t n : Sizes{5, 64, 100, 128}) Kda(n);
    for (const size_t n : Sizes{1, 64, 100}) Mla(n);
    for (const WeightFormat format :
         {WeightFormat::kBF16, WeightFormat::kF32, WeightFormat::kMXFP4, WeightFormat::kQ8}) {
      for (const size_t tokens : Sizes{1, 3, 9}) Matrix(format, tokens);
    }
  }
  const std::vector<float>& values() const { return values_; }

 private:
  void Add(const Floats& out) { values_.insert(values_.end(), out.begin(), out.end()); }

  void Vectors(size_t n) {
    const Floats a = RandomFloats(n, 1, -30.0f, 30.0f), b = RandomFloats(n, 2, -3.0f, 3.0f);
    Floats y(n);
    values_.push_back(kernels_.dot(a.data(), b.data(), n));
    const auto collect = [&](auto call) {
      std::copy(b.begin(), b.end(), y.begin());
      call();
      Add(y);
    };
    collect([&] { kernels_.axpy(0.3f, a.data(), n, y.data()); });
    collect([&] { kernels_.rms_norm(a.data(), b.data(), 1e-5f, n, y.data()); });
    collect([&] { kernels_.l2_normalize(a.data(), 1e-6f, 0.1f, n, y.data()); });
    collect([&] { kernels_.softmax(y.data(), n); });
    collect([&] { kernels_.gate(a.data(), n, y.data()); });
    collect([&] { kernels_.silu_glu(a.data(), b.data(), n, y.data()); });
    collect([&] { kernels_.situ_glu(a.data(), b.data(), 4.0f, 25.0f, n, y.data()); });
    collect([&] { kernels_.decay_bounded(a.data(), b.data(), 0.7f, -5.0f, n, y.data()); });
    collect([&] { kernels_.decay_softplus(a.data(), b.data(), 0.7f, n, y.data()); });
  }

  void Kda(size_t n) {
    const Floats q = RandomFloats(n, 3), k = RandomFloats(n, 4), v = RandomFloats(n, 5),
                 decay = RandomFloats(n, 6, 0.1f, 1.0f);
    Floats state = RandomFloats(n * n, 7), o(n);
    kernels_.kda_step(
        {q.data(), k.data(), v.data(), decay.data(), 0.4f, n, state.data(), o.data()});
    Add(state);
    Add(o);
  }

  void Mla(size_t positions) {
    const size_t heads = 3, tokens = 4;
    const Floats q = RandomFloats(tokens * heads * 150, 8),
                 cache = RandomFloats((positions + tokens - 1) * 150, 9);
    Floats context(tokens * heads * 141);
    kernels_.mla_attend({.q = q.data(),
                         .num_tokens = tokens,
                         .num_heads = heads,
                         .cache = cache.data(),
                         .num_positions = positions,
                         .shape = {LatentFormat::kF32, 141, 9},
                         .scale = 0.3f,
                         .context = context.data(),
                         .decoded = nullptr});
    Add(context);
  }

  void Matrix(WeightFormat format, size_t tokens) {
    const TestMatrix w = RandomMatrix(format, 21, 352, 10);
    const Floats x = RandomFloats(tokens * 352, 11);
    Floats y(tokens * 21);
    kernels_.matmul({w.view, x.data(), 352, tokens, y.data(), 21});
    Add(y);
  }

  const Kernels& kernels_;
  std::vector<float> values_;
};

TEST(TargetsTest, TargetsWithTheSameArithmeticGiveTheSameBits) {
  for (const Kernels* a : AllKernels()) {
    for (const Kernels* b : AllKernels()) {
      if (a == b || Arithmetic(*a).fused != Arithmetic(*b).fused) continue;
      ExpectSameBits(AllOutputs(*a).values(), AllOutputs(*b).values(),
                     std::string(a->simd) + " and " + b->simd);
    }
  }
}

TEST(TargetsTest, BestIsTheFirstOfAll) { EXPECT_EQ(&BestKernels(), AllKernels().front()); }

}  // namespace
}  // namespace thimble
