#include <algorithm>

#include "kernels/kernel_test_util.h"

namespace thimble {
namespace {

// ---- short convolution

class ShortConvTest : public KernelTest {};

TEST_P(ShortConvTest, SumsTapsInOrder) {
  constexpr size_t kWidth = 4;
  for (const size_t n : kLengths) {
    std::vector<Floats> rows, taps;
    const float* row_at[kWidth];
    const float* tap_at[kWidth];
    for (uint32_t j = 0; j < kWidth; ++j) {
      row_at[j] = rows.emplace_back(RandomFloats(n, 1 + j, -4.0f, 4.0f)).data();
      tap_at[j] = taps.emplace_back(RandomFloats(n, 11 + j)).data();
    }
    Floats out(n), sums(n), want(n);
    kernels_.short_conv(row_at, tap_at, kWidth, n, out.data());
    for (size_t i = 0; i < n; ++i) {
      sums[i] = 0.0f;
      for (size_t j = 0; j < kWidth; ++j) {
        sums[i] = arithmetic_.MulAdd(taps[j][i], rows[j][i], sums[i]);
      }
    }
    kernels_.sigmoid(sums.data(), n, want.data());
    kernels_.multiply(sums.data(), n, want.data());
    ExpectSameBits(out, want, std::to_string(n));
  }
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(ShortConvTest);

// ---- Kimi Delta Attention

/// Inputs and state of one head.
struct KdaHead {
  explicit KdaHead(size_t n)
      : dim(n),
        q(RandomFloats(n, 1)),
        k(RandomFloats(n, 2)),
        v(RandomFloats(n, 3)),
        decay(RandomFloats(n, 4, 0.1f, 1.0f)),
        state(RandomFloats(n * n, 5)),
        o(n) {}
  KdaStepArgs Args(Floats& at_state, Floats& at_o) const {
    return {q.data(), k.data(), v.data(), decay.data(), kBeta, dim, at_state.data(), at_o.data()};
  }

  static constexpr float kBeta = 0.7f;
  size_t dim;
  Floats q, k, v, decay, state, o;
};

/// One value column of the contract, element by element.
void StepColumn(Arithmetic arithmetic, const KdaHead& head, size_t col, Floats& state, Floats& o) {
  const size_t n = head.dim;
  float seen = 0.0f;
  for (size_t key = 0; key < n; ++key) {
    float& s = state[key * n + col];
    s = head.decay[key] * s;
    seen = arithmetic.MulAdd(s, head.k[key], seen);
  }
  const float change = KdaHead::kBeta * (head.v[col] - seen);
  o[col] = 0.0f;
  for (size_t key = 0; key < n; ++key) {
    float& s = state[key * n + col];
    s = arithmetic.MulAdd(head.k[key], change, s);
    o[col] = arithmetic.MulAdd(s, head.q[key], o[col]);
  }
}

class KdaTest : public KernelTest {};

TEST_P(KdaTest, SumsInSerialOrder) {
  for (const size_t n : Sizes{1, 3, 16, 17, 64, 65, 100, 128}) {
    const KdaHead head(n);
    Floats state = Copy(head.state), o(n), want_state = Copy(head.state), want_o(n);
    kernels_.kda_step(head.Args(state, o));
    for (size_t col = 0; col < n; ++col) StepColumn(arithmetic_, head, col, want_state, want_o);
    ExpectSameBits(state, want_state, "state, " + std::to_string(n));
    ExpectSameBits(o, want_o, "output, " + std::to_string(n));
  }
}

TEST_P(KdaTest, AgreesWithTheRecurrenceInDoublePrecision) {
  constexpr size_t n = 48;
  const KdaHead head(n);
  Floats state = Copy(head.state), o(n);
  kernels_.kda_step(head.Args(state, o));
  for (size_t col = 0; col < n; ++col) {
    double seen = 0, seen_norm = 0;
    for (size_t key = 0; key < n; ++key) {
      const double product = double{head.decay[key]} * head.state[key * n + col] * head.k[key];
      seen += product;
      seen_norm += std::abs(product);
    }
    const double change = KdaHead::kBeta * (head.v[col] - seen);
    double want = 0, norm = 0;
    for (size_t key = 0; key < n; ++key) {
      const double s = double{head.decay[key]} * head.state[key * n + col] + head.k[key] * change;
      want += s * head.q[key];
      norm += std::abs(head.q[key]) * (std::abs(s) + std::abs(head.k[key]) * seen_norm);
    }
    // Two sums of n terms; the first one's error reaches each term of the second.
    ASSERT_NEAR(o[col], want, 2 * (n + 4) * kEpsilon * norm) << col;
  }
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(KdaTest);

}  // namespace
}  // namespace thimble
