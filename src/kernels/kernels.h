#pragma once

#include <cstddef>
#include <vector>

#include "codec/weight_matrix.h"
#include "kernels/latents.h"

/// Arithmetic on packed weights and on float32 activations.
///
/// Every sum has one fixed order, so a result depends on the numbers alone, never on the SIMD
/// width, the number of tokens beside it, or the thread (docs/ARCHITECTURE.md, the arithmetic
/// contract). Three orders occur, and each kernel names its own:
///
/// - *paired*, for matrix products: 16 lanes that start at zero. In each group of 32 elements, lane
///   l takes element 2l, then element 2l + 1, each by a fused multiply-add. A short last group is
///   continued with zeros.
/// - *striped*, for sums over a vector: 16 lanes that start at zero; lane l takes elements l,
///   l + 16, l + 32, ... by fused multiply-add (or addition, where nothing is multiplied).
/// - *serial*: element after element, by fused multiply-add; lanes run over independent outputs.
///
/// The 16 lanes of the first two end in one tree: for s = 8, 4, 2, 1, lane l += lane l + s.
///
/// On a target without fused multiply-add (SSE4, the scalar baseline) each of these is a
/// multiplication and an addition: results there are as exact, but not the same bits as elsewhere.
///
/// All pointers may be unaligned. Outputs must not overlap inputs unless a kernel says so.
namespace thimble {

/// Lengths of packed activation rows: columns rounded up to whole groups of 32.
constexpr size_t PackedCols(size_t cols) { return (cols + 31) / 32 * 32; }

/// y[t][r] = sum_c w[r][c] * x[t][c] for all rows of `w` and t in [0, num_tokens). Paired order,
/// the same for each weight format: MXFP4 and Q8 give the bits that their dequantised weights
/// would.
struct MatMulArgs {
  WeightMatrix w;
  const float* x;     // [num_tokens, x_stride], rows as written by pack_activations
  size_t x_stride;    // floats from one token's row to the next; >= PackedCols(w.cols)
  size_t num_tokens;  // >= 1
  float* y;           // [num_tokens, y_stride], natural order
  size_t y_stride;    // floats; >= w.rows
};

/// One token of Kimi Delta Attention for one head (docs/MODEL.md, KDA), in place:
///   S <- diag(decay) S;  e = v - S^T k;  S <- S + k (beta e)^T;  o = S^T q
/// Serial order over the key index, which is the row of S.
struct KdaStepArgs {
  const float* q;      // [head_dim], normalised and scaled
  const float* k;      // [head_dim], normalised
  const float* v;      // [head_dim]
  const float* decay;  // [head_dim], e^g
  float beta;
  size_t head_dim;
  float* state;  // [head_dim (key), head_dim (value)]
  float* o;      // [head_dim]
};

/// Latent attention of some heads of some tokens that follow one another (docs/MODEL.md, MLA,
/// absorbed form), each for itself:
///   s_j = scale * (q . cache_j);  p = softmax(s);  context = sum_j p_j cache_j[0 .. latent)
/// over the positions j that a token may see. The softmax is computed online over blocks of
/// kAttentionBlock positions counted from position 0, so that it needs no memory that grows with
/// the context and yet does not depend on how the prompt was cut. For each block: the largest score
/// so far; all earlier sums times e^(largest before - largest now); then the block's weights, added
/// in order of positions. Dot products: striped. Sums over positions: serial. So a query's result
/// is the same bits in any company. A cache that is not float32 is decoded, exactly, block by
/// block, once for all queries: the result is the bits that the decoded rows would give.
struct MlaAttendArgs {
  const float* q;        // [num_tokens, num_heads, latent + extra]: the absorbed query, then the
                         // extra (unrotated) part
  size_t num_tokens;     // >= 1
  size_t num_heads;      // >= 1; num_tokens * num_heads <= kMaxAttentionQueries
  const void* cache;     // rows as `shape` says; of floats for kF32
  size_t num_positions;  // >= 1: the first token sees so many, each next one sees one more
  LatentShape shape;
  float scale;
  float* context;  // [num_tokens, num_heads, latent]
  float* decoded;  // scratch [kAttentionBlock, latent + extra]; not used for kF32
};
inline constexpr size_t kAttentionBlock = 64;
/// Queries and contexts of so many, and a block, fit into a second cache of half a MiB.
inline constexpr size_t kMaxAttentionQueries = 32;

/// The kernels of one SIMD target. Stateless, noexcept, no allocation, safe from any thread.
struct Kernels {
  const char* simd;  // Highway's name of the target, e.g. "AVX2"

  // ---- matrices
  /// Permutes a row for `matmul`: in each group of 32, the 16 even elements, then the 16 odd ones;
  /// zeros beyond `cols`. `packed` holds PackedCols(cols) floats.
  void (*pack_activations)(const float* x, size_t cols, float* packed);
  void (*matmul)(const MatMulArgs& args);
  /// y[c] = sum_r x[r] * w[r][c]. Serial order over rows. BF16 and F32 only.
  void (*transposed_matvec)(const WeightMatrix& w, const float* x, float* y);
  /// out[r][c] = w[r][c], exactly (every stored format fits float32).
  void (*decode)(const WeightMatrix& w, float* out);

  // ---- vectors of n elements
  float (*dot)(const float* a, const float* b, size_t n);      // striped
  float (*sum_of_squares)(const float* x, size_t n);           // striped
  void (*scale)(float a, const float* x, size_t n, float* y);  // y = a x; y may be x
  void (*axpy)(float a, const float* x, size_t n, float* y);   // y = fma(a, x, y)
  void (*add)(const float* x, size_t n, float* y);             // y += x
  void (*multiply)(const float* x, size_t n, float* y);        // y *= x
  bool (*all_finite)(const float* x, size_t n);

  /// y = w * (x * (1 / sqrt(mean(x^2) + eps))). y may be x. The sum of squares is striped.
  void (*rms_norm)(const float* x, const float* w, float eps, size_t n, float* y);
  /// y = x * (1 / sqrt(sum(x^2) + eps)) * scale. y may be x. The sum of squares is striped.
  void (*l2_normalize)(const float* x, float eps, float scale, size_t n, float* y);
  /// x <- softmax(x), in place: e^(x - max) times 1 / sum; the sum is striped. n >= 1.
  void (*softmax)(float* x, size_t n);

  // ---- activations; y may be an input
  void (*sigmoid)(const float* x, size_t n, float* y);
  /// y *= sigmoid(gate): the output gates of both mixers.
  void (*gate)(const float* gate, size_t n, float* y);
  /// y = silu(gate) * up.
  void (*silu_glu)(const float* gate, const float* up, size_t n, float* y);
  /// y = beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta); a linear_beta of 0
  /// leaves `up` as it is.
  void (*situ_glu)(const float* gate, const float* up, float beta, float linear_beta, size_t n,
                   float* y);

  // ---- token mixers
  /// out[i] = silu(sum_j taps[j][i] * rows[j][i]), j in [0, width), serial; rows[width-1] is now.
  /// out may be rows[width-1].
  void (*short_conv)(const float* const* rows, const float* const* taps, size_t width, size_t n,
                     float* out);
  /// out[i] = e^g with g = bound * sigmoid(alpha * (z[i] + bias[i])).  (K3; bound < 0) out may be
  /// z.
  void (*decay_bounded)(const float* z, const float* bias, float alpha, float bound, size_t n,
                        float* out);
  /// out[i] = e^g with g = -alpha * softplus(z[i] + bias[i]).  (Kimi-Linear) out may be z.
  void (*decay_softplus)(const float* z, const float* bias, float alpha, size_t n, float* out);
  void (*kda_step)(const KdaStepArgs& args);
  void (*mla_attend)(const MlaAttendArgs& args);

  // ---- limits of the machine, to hold the kernels against
  /// The sum of `count` words, modulo 2^32: reads as fast as memory gives.
  uint32_t (*sum_words)(const uint32_t* words, size_t count);
  /// `steps` rounds of independent chains c <- 0.5 c + 0.5 that start at 1, 2, ..., 12: as many
  /// multiply-adds as the core can do. Returns the floating-point operations done, two for each;
  /// *sum is that of the chains over the lanes.
  double (*multiply_add_chains)(size_t steps, float* sum);
};

/// The kernels of the best target that this machine can run.
const Kernels& BestKernels();

/// The kernels of every target that was built and that this machine can run, best first: for tests.
std::vector<const Kernels*> AllKernels();

}  // namespace thimble
