#include <algorithm>

#include "kernels/kernel_test_util.h"

namespace thimble {
namespace {

class VectorTest : public KernelTest {
 protected:
  template <class Want>
  static void ExpectEach(const Floats& y, Want want) {
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(Bits(y[i]), Bits(want(i))) << "element " << i << " of " << y.size();
    }
  }
};

TEST_P(VectorTest, DotAndSumOfSquaresAreStriped) {
  for (const size_t n : kLengths) {
    const Floats a = RandomFloats(n, 1), b = RandomFloats(n, 2);
    const float dot = kernels_.dot(a.data(), b.data(), n);
    ASSERT_EQ(Bits(dot), Bits(StripedDot(arithmetic_, a.data(), b.data(), n))) << n;
    const ReferenceDot exact = ExactDot(a.data(), b.data(), n);
    ASSERT_NEAR(dot, exact.value, exact.tolerance) << n;
    ASSERT_EQ(Bits(kernels_.sum_of_squares(a.data(), n)),
              Bits(StripedDot(arithmetic_, a.data(), a.data(), n)))
        << n;
  }
  EXPECT_EQ(kernels_.dot(nullptr, nullptr, 0), 0.0f);
}

TEST_P(VectorTest, ScaleAndAxpy) {
  for (const size_t n : kLengths) {
    const Floats x = RandomFloats(n, 3), y = RandomFloats(n, 4);
    Floats scaled(n), sum = Copy(y);
    kernels_.scale(0.3f, x.data(), n, scaled.data());
    kernels_.axpy(0.3f, x.data(), n, sum.data());
    ExpectEach(scaled, [&](size_t i) { return 0.3f * x[i]; });
    ExpectEach(sum, [&](size_t i) { return arithmetic_.MulAdd(0.3f, x[i], y[i]); });
  }
}

TEST_P(VectorTest, AddAndMultiplyInPlace) {
  for (const size_t n : kLengths) {
    const Floats x = RandomFloats(n, 3), y = RandomFloats(n, 4);
    Floats sum = Copy(y), product = Copy(y);
    kernels_.add(x.data(), n, sum.data());
    kernels_.multiply(x.data(), n, product.data());
    ExpectEach(sum, [&](size_t i) { return y[i] + x[i]; });
    ExpectEach(product, [&](size_t i) { return y[i] * x[i]; });
  }
}

TEST_P(VectorTest, AllFiniteFindsOneBadElementAnywhere) {
  for (const size_t n : Sizes{1, 15, 16, 17, 40}) {
    Floats x = RandomFloats(n, 5, -1e38f, 1e38f);
    EXPECT_TRUE(kernels_.all_finite(x.data(), n));
    for (size_t i = 0; i < n; ++i) {
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        const float good = std::exchange(x[i], bad);
        EXPECT_FALSE(kernels_.all_finite(x.data(), n)) << i;
        x[i] = good;
      }
    }
  }
}

TEST_P(VectorTest, RmsNorm) {
  for (const size_t n : kLengths) {
    const Floats x = RandomFloats(n, 6, -2.0f, 2.0f), w = RandomFloats(n, 7, 0.5f, 1.5f);
    Floats y = Copy(x);
    kernels_.rms_norm(y.data(), w.data(), 1e-5f, n, y.data());
    double square = 0;
    for (const float v : x) square += double{v} * v;
    const double root = std::sqrt(square / static_cast<double>(n) + 1e-5);
    for (size_t i = 0; i < n; ++i) {
      const double want = w[i] * (x[i] / root);
      // n roundings in the sum, halved by the root, and six others.
      const double tolerance = (static_cast<double>(n) / 2 + 6) * kEpsilon * std::abs(want);
      ASSERT_NEAR(y[i], want, tolerance) << n;
    }
  }
}

TEST_P(VectorTest, L2Normalize) {
  for (const size_t n : kLengths) {
    const Floats x = RandomFloats(n, 8);
    Floats y(n);
    kernels_.l2_normalize(x.data(), 1e-6f, 0.125f, n, y.data());
    double square = 0;
    for (const float v : x) square += double{v} * v;
    for (size_t i = 0; i < n; ++i) {
      const double want = x[i] / std::sqrt(square + 1e-6) * 0.125;
      const double tolerance = (static_cast<double>(n) / 2 + 6) * kEpsilon * std::abs(want);
      ASSERT_NEAR(y[i], want, tolerance) << n;
    }
  }
}

TEST_P(VectorTest, Softmax) {
  for (const size_t n : kLengths) {
    const Floats x = RandomFloats(n, 9, -9.0f, 9.0f);
    Floats y = Copy(x);
    kernels_.softmax(y.data(), n);
    const double largest = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float v : x) sum += std::exp(double{v} - largest);
    for (size_t i = 0; i < n; ++i) {
      const double want = std::exp(double{x[i]} - largest) / sum;
      // The difference v - largest is rounded at a size up to 18; exp adds 5, the sum at most n.
      const double tolerance = (18 + 5 + static_cast<double>(n) + 3) * kEpsilon * want;
      ASSERT_NEAR(y[i], want, tolerance) << n;
    }
  }
}

TEST_P(VectorTest, SoftmaxOfEqualOrDistantScores) {
  Floats equal(std::vector<float>(32, 5e30f));
  kernels_.softmax(equal.data(), 32);
  for (const float p : equal) EXPECT_EQ(p, 1.0f / 32);
  Floats distant(std::vector<float>{-1e30f, 500.0f, 0.0f});
  kernels_.softmax(distant.data(), 3);
  ExpectSameBits(distant, std::vector<float>{0.0f, 1.0f, 0.0f}, "distant");
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(VectorTest);

}  // namespace
}  // namespace thimble
