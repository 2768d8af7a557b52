#include <algorithm>

#include "kernels/kernel_test_util.h"

namespace thimble {
namespace {

/// Queries of some heads of some tokens, and the rows that they see.
struct Attention {
  struct Queries {
    size_t tokens;
    size_t heads;
    size_t positions;  // of the first token
  };
  Attention(const Queries& queries, size_t latent_dim, size_t extra_dim)
      : of(queries),
        latent(latent_dim),
        width(latent_dim + extra_dim),
        q(RandomFloats(queries.tokens * queries.heads * width, 1)),
        cache(RandomFloats((queries.positions + queries.tokens - 1) * width, 2)) {}
  size_t size() const { return of.tokens * of.heads; }
  /// Positions that a query sees.
  size_t Positions(size_t query) const { return of.positions + query / of.heads; }
  const float* Query(size_t query) const { return q.data() + query * width; }
  const float* Row(size_t j) const { return cache.data() + j * width; }

  Floats Attend(const Kernels& kernels, float scale) const {
    Floats context(size() * latent);
    kernels.mla_attend(Args(scale, context));
    return context;
  }
  /// The same, a query at a time.
  Floats AttendEach(const Kernels& kernels, float scale) const {
    Floats contexts(size() * latent);
    for (size_t query = 0; query < size(); ++query) {
      Floats context(latent);
      MlaAttendArgs args = Args(scale, context);
      args.q = Query(query);
      args.num_tokens = args.num_heads = 1;
      args.num_positions = Positions(query);
      kernels.mla_attend(args);
      std::copy(context.begin(), context.end(), contexts.begin() + query * latent);
    }
    return contexts;
  }
  MlaAttendArgs Args(float scale, Floats& context) const {
    return {.q = q.data(),
            .num_tokens = of.tokens,
            .num_heads = of.heads,
            .cache = cache.data(),
            .num_positions = of.positions,
            .shape = {LatentFormat::kF32, latent, width - latent},
            .scale = scale,
            .context = context.data(),
            .decoded = nullptr};
  }

  Queries of;
  size_t latent, width;
  Floats q, cache;
};

class AttentionTest : public KernelTest {
 protected:
  void ExpectSoftmax(const Attention& attention, size_t query, const float* context) {
    const size_t positions = attention.Positions(query);
    std::vector<double> weights(positions);
    double sum = 0;
    for (size_t j = 0; j < positions; ++j) {
      const double dot = ExactDot(attention.Query(query), attention.Row(j), attention.width).value;
      weights[j] = std::exp(0.5 * dot);
      sum += weights[j];
    }
    for (size_t i = 0; i < attention.latent; ++i) {
      double want = 0, norm = 0;
      for (size_t j = 0; j < positions; ++j) {
        want += weights[j] / sum * attention.Row(j)[i];
        norm += weights[j] / sum * std::abs(attention.Row(j)[i]);
      }
      // Scores up to 20 from sums of 79 terms, exp, and two sums over the positions.
      const double roundings = 79 * 20 + 10 + 2 * static_cast<double>(positions);
      ASSERT_NEAR(context[i], want, roundings * kEpsilon * norm) << query << ", " << positions;
    }
  }
};

TEST_P(AttentionTest, AgreesWithSoftmaxInDoublePrecision) {
  for (const size_t positions : Sizes{1, 2, 63, 64, 65, 200}) {
    const Attention attention({2, 5, positions}, 70, 9);
    const Floats context = attention.Attend(kernels_, 0.5f);
    for (size_t query = 0; query < attention.size(); ++query) {
      ExpectSoftmax(attention, query, context.data() + query * attention.latent);
    }
  }
}

/// Heads that fill tiles and groups of them or not, and tokens on both sides of blocks' ends.
TEST_P(AttentionTest, AQueryGivesTheSameBitsInAnyCompany) {
  for (const auto& [latent, extra] : {std::pair<size_t, size_t>{128, 32}, {37, 9}, {3, 1}}) {
    for (const size_t tokens : Sizes{1, 2, 4, 8}) {
      for (const size_t heads : Sizes{1, 2, 3, 4, 9, 32}) {
        if (tokens * heads > kMaxAttentionQueries) continue;
        for (const size_t positions : Sizes{1, 14, 59, 64, 125, 200}) {
          const Attention attention({tokens, heads, positions}, latent, extra);
          ExpectSameBits(attention.Attend(kernels_, 0.4f), attention.AttendEach(kernels_, 0.4f),
                         std::to_string(tokens) + " tokens, " + std::to_string(heads) + " heads, " +
                             std::to_string(positions) + " positions");
        }
      }
    }
  }
}

/// e^x for x <= 0 as the target computes it: with z + bias of 0, the decay is e^(bound / 2).
float ExpOf(const Kernels& kernels, float x) {
  const float zero = 0.0f;
  float result = 1.0f;
  if (x < 0.0f) kernels.decay_bounded(&zero, &zero, 1.0f, 2.0f * x, 1, &result);
  return result;
}

/// The contract of kernels.h, element by element.
std::vector<float> ContextInOrder(const Kernels& kernels, const Attention& attention, size_t query,
                                  float scale) {
  const Arithmetic arithmetic(kernels);
  std::vector<float> context(attention.latent);
  float largest = -std::numeric_limits<float>::infinity(), sum = 0.0f;
  const size_t positions = attention.Positions(query);
  for (size_t first = 0; first < positions; first += kAttentionBlock) {
    const size_t count = std::min(kAttentionBlock, positions - first);
    std::vector<float> weights(count);
    for (size_t j = 0; j < count; ++j) {
      weights[j] = scale * StripedDot(arithmetic, attention.Query(query), attention.Row(first + j),
                                      attention.width);
    }
    const float before = largest;
    for (const float score : weights) largest = std::max(largest, score);
    const float factor = ExpOf(kernels, before - largest);
    sum *= factor;
    for (float& value : context) value *= factor;
    for (size_t j = 0; j < count; ++j) {
      const float weight = ExpOf(kernels, weights[j] - largest);
      sum += weight;
      for (size_t i = 0; i < context.size(); ++i) {
        context[i] = arithmetic.MulAdd(weight, attention.Row(first + j)[i], context[i]);
      }
    }
  }
  for (float& value : context) value *= 1.0f / sum;
  return context;
}

TEST_P(AttentionTest, EachSumHasItsOrder) {
  for (const size_t width : Sizes{15, 48, 79}) {
    for (const size_t positions : Sizes{1, 40, 61, 126}) {
      const Attention attention({6, 5, positions}, width - 9, 9);
      const Floats contexts = attention.Attend(kernels_, 0.7f);
      for (size_t query = 0; query < attention.size(); ++query) {
        ExpectSameBits({contexts.data() + query * attention.latent, attention.latent},
                       ContextInOrder(kernels_, attention, query, 0.7f),
                       "query " + std::to_string(query) + ", " + std::to_string(positions));
      }
    }
  }
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(AttentionTest);

}  // namespace
}  // namespace thimble
