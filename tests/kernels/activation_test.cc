#include <algorithm>
#include <cstdio>
#include <functional>

#include "kernels/kernel_test_util.h"

namespace thimble {
namespace {

/// The bound that math-inl.h promises for each function, and the smallest normal number, below
/// which errors are counted in units of the smallest subnormal.
constexpr long double kMaxRelativeError = 3e-7L;
constexpr long double kSmallestNormal = 0x1p-126L;

/// Error of `actual` relative to `exact`, which must be finite and in float's range.
long double RelativeError(float actual, long double exact) {
  const long double error = std::abs(static_cast<long double>(actual) - exact);
  return error / std::max(std::abs(exact), kSmallestNormal);
}

/// Floats of all exponents and both signs, about `per_exponent` of each.
std::vector<float> FloatsOfAllSizes(uint32_t per_exponent) {
  std::vector<float> values;
  const uint32_t step = 0x800000u / per_exponent - 1;
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += step) {
    values.push_back(std::bit_cast<float>(bits));
    values.push_back(-values.back());
  }
  return values;
}

class ActivationTest : public KernelTest {
 protected:
  // The table offers exp and tanh only inside other kernels; these arguments leave them bare.
  float Exp(float x) const {
    const float z = 1000.0f, bias = 0.0f;  // sigmoid(1000) == 1
    float out;
    kernels_.decay_bounded(&z, &bias, 1.0f, x, 1, &out);
    return out;
  }
  std::vector<float> Tanh(const std::vector<float>& x) const {
    const std::vector<float> gate(x.size(), 1000.0f);  // 1 tanh(1000 / 1) sigmoid(1000) == 1
    std::vector<float> out(x.size());
    kernels_.situ_glu(gate.data(), x.data(), 1.0f, 1.0f, x.size(), out.data());
    return out;
  }
  std::vector<float> Sigmoid(const std::vector<float>& x) const {
    std::vector<float> out(x.size());
    kernels_.sigmoid(x.data(), x.size(), out.data());
    return out;
  }
};

TEST_P(ActivationTest, ExpIsAccurate) {
  long double worst = 0;
  for (float x = -103.0f; x < 88.7f; x += 0.00719f) {
    const long double exact = std::exp(static_cast<long double>(x));
    const float actual = Exp(x);
    if (exact >= kSmallestNormal) {
      worst = std::max(worst, RelativeError(actual, exact));
    } else {
      ASSERT_NEAR(actual, static_cast<double>(exact), 0x1p-149) << x;
    }
  }
  RecordProperty("worst_relative_error", std::to_string(static_cast<double>(worst * 1e9L)) + "e-9");
  EXPECT_LT(worst, kMaxRelativeError);
}

TEST_P(ActivationTest, ExpAtTheEdges) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(1e-30f), 1.0f);
  EXPECT_EQ(Exp(-104.0f), 0.0f);
  EXPECT_EQ(Exp(-1e30f), 0.0f);
  EXPECT_EQ(Exp(-INFINITY), 0.0f);
  EXPECT_EQ(Exp(88.8f), INFINITY);
  EXPECT_EQ(Exp(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(Exp(NAN)));
  EXPECT_GT(Exp(-103.0f), 0.0f);
}

TEST_P(ActivationTest, SigmoidIsAccurate) {
  std::vector<float> x = FloatsOfAllSizes(64);
  for (float v = -87.0f; v < 20.0f; v += 0.01f) x.push_back(v);
  const std::vector<float> y = Sigmoid(x);
  long double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double exact = 1 / (1 + std::exp(-static_cast<long double>(x[i])));
    if (exact < kSmallestNormal) {
      ASSERT_NEAR(y[i], static_cast<double>(exact), 0x1p-149) << x[i];
    } else {
      worst = std::max(worst, RelativeError(y[i], exact));
    }
  }
  RecordProperty("worst_relative_error", std::to_string(static_cast<double>(worst * 1e9L)) + "e-9");
  EXPECT_LT(worst, kMaxRelativeError);
}

TEST_P(ActivationTest, TanhIsAccurate) {
  std::vector<float> x = FloatsOfAllSizes(64);
  for (float v = -10.0f; v < 10.0f; v += 0.001f) x.push_back(v);
  const std::vector<float> y = Tanh(x);
  long double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, RelativeError(y[i], std::tanh(static_cast<long double>(x[i]))));
  }
  RecordProperty("worst_relative_error", std::to_string(static_cast<double>(worst * 1e9L)) + "e-9");
  EXPECT_LT(worst, kMaxRelativeError);
}

TEST_P(ActivationTest, SpecialValues) {
  const std::vector<float> x = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-45f};
  const std::vector<float> sigmoid = Sigmoid(x);
  const std::vector<float> tanh = Tanh(x);
  const std::vector<float> want_sigmoid = {0.5f, 0.5f, 1.0f, 0.0f, NAN, 1.0f, 0.0f, 0.5f};
  const std::vector<float> want_tanh = {0.0f, -0.0f, 1.0f, -1.0f, NAN, 1.0f, -1.0f, 1e-45f};
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(sigmoid[i]));
      EXPECT_TRUE(std::isnan(tanh[i]));
      continue;
    }
    EXPECT_EQ(Bits(sigmoid[i]), Bits(want_sigmoid[i])) << x[i];
    EXPECT_EQ(Bits(tanh[i]), Bits(want_tanh[i])) << x[i];
  }
}

TEST_P(ActivationTest, EachElementDependsOnItselfAlone) {
  const std::vector<float> x = {1.0f, NAN, -2.0f, INFINITY, 0.3f};
  std::vector<float> padded(21, -7.5f);
  std::copy(x.begin(), x.end(), padded.begin() + 9);
  const std::vector<float> y = Sigmoid(padded);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(Bits(y[9 + i]), Bits(Sigmoid({x[i]})[0])) << i;
  }
}

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

TEST_P(ActivationTest, GatesAndGlus) {
  for (const size_t n : kLengths) {
    const Floats g = RandomFloats(n, 1, -12.0f, 12.0f), u = RandomFloats(n, 2, -60.0f, 60.0f);
    Floats gated = Copy(u), silu(n), situ(n), open = Copy(u);
    kernels_.gate(g.data(), n, gated.data());
    kernels_.silu_glu(g.data(), u.data(), n, silu.data());
    kernels_.situ_glu(g.data(), u.data(), 4.0f, 25.0f, n, situ.data());
    kernels_.situ_glu(g.data(), open.data(), 4.0f, 0.0f, n, open.data());
    for (size_t i = 0; i < n; ++i) {
      const double sigmoid = SigmoidOf(g[i]);
      const double clipped = 4 * std::tanh(g[i] / 4.0) * sigmoid;
      const double want[4] = {u[i] * sigmoid, g[i] * sigmoid * u[i],
                              clipped * 25 * std::tanh(u[i] / 25.0), clipped * u[i]};
      const float actual[4] = {gated[i], silu[i], situ[i], open[i]};
      for (int k = 0; k < 4; ++k) {
        // At most three functions of 3e-7 each, and eight roundings.
        ASSERT_NEAR(actual[k], want[k], (9e-7 + 8 * kEpsilon) * std::abs(want[k])) << k;
      }
    }
  }
}

TEST_P(ActivationTest, Decays) {
  for (const size_t n : kLengths) {
    const Floats z = RandomFloats(n, 3, -20.0f, 20.0f), bias = RandomFloats(n, 4);
    for (const float alpha : {0.05f, 1.0f, 3.0f}) {
      Floats bounded(n), softplus(n);
      kernels_.decay_bounded(z.data(), bias.data(), alpha, -5.0f, n, bounded.data());
      kernels_.decay_softplus(z.data(), bias.data(), alpha, n, softplus.data());
      for (size_t i = 0; i < n; ++i) {
        const double sum = z[i] + bias[i];
        const double g[2] = {-5 * SigmoidOf(alpha * sum), -alpha * std::log1p(std::exp(sum))};
        const float actual[2] = {bounded[i], softplus[i]};
        for (int k = 0; k < 2; ++k) {
          // An error of g passes whole into the relative error of e^g; so does, for the bounded
          // form, alpha z's rounding times the slope of the sigmoid.
          const double tolerance = 4e-7 * (1 + std::abs(g[k])) + 5 * alpha * 21 * kEpsilon;
          ASSERT_NEAR(actual[k], std::exp(g[k]), tolerance * std::exp(g[k])) << k << " " << sum;
        }
      }
    }
  }
}

TEST_P(ActivationTest, SoftplusIsAccurateFarBelowZero) {
  // There softplus is e^z: 1 - e^(-2^20 e^z) would show a loss of its relative accuracy.
  for (float z = -13.0f; z > -30.0f; z -= 0.37f) {
    const float bias = 0.0f, alpha = 0x1p20f;
    float out;
    kernels_.decay_softplus(&z, &bias, alpha, 1, &out);
    const double g = -double{alpha} * std::log1p(std::exp(double{z}));
    ASSERT_NEAR(out, std::exp(g), 4e-7 * (1 + std::abs(g)) * std::exp(g)) << z;
  }
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(ActivationTest);

}  // namespace
}  // namespace thimble
