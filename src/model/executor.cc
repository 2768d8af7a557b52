#include "model/executor.h"

#include <algorithm>

#include "base/checked_math.h"
#include "base/error.h"

namespace thimble {
namespace {

// Rows that share one pass over the activations in the kernels.
constexpr size_t kRowGrain = 8;

// Multiply-adds of a thread between two looks at the observer: a fifth of a second, however many
// tokens there are.
constexpr size_t kMostProducts = size_t{1} << 33;

}  // namespace

void Executor::MatMul(const WeightMatrix& w, const Rows& x, size_t num_tokens,
                      const Rows& y) const {
  const size_t row_cost = w.cols * num_tokens;
  const size_t grain = RoundUp(kMinFloatsPerThread / (row_cost + 1) + 1, kRowGrain);
  const size_t piece = RoundUp(kMostProducts / (row_cost + 1) + 1, grain) * pool_.num_threads();
  InPieces(w.rows, piece, [&](size_t first, size_t count) {
    const WeightMatrix part = w.Rows(first, count);
    pool_.ParallelFor(count, grain, [&](const Range& range) {
      kernels_.matmul({part.Rows(range.first, range.last - range.first), x.data, x.stride,
                       num_tokens, y.data + first + range.first, y.stride});
    });
  });
}

void Executor::ThrowIfStopped() const {
  if (observer_ != nullptr && !observer_->Continue()) {
    throw Error(ErrorCode::kInterrupted, "stopped in the middle of a layer");
  }
}

void Executor::Linear(const TensorAddress& tensor, size_t rows, const Rows& x, size_t num_tokens,
                      const Rows& y) const {
  for (size_t row = 0; row < rows;) {
    const Lease<WeightMatrix> block = source_.Acquire(tensor, row);
    THIMBLE_CHECK(block->rows > 0 && block->rows <= rows - row);
    ThrowIfStopped();
    MatMul(*block, x, num_tokens, {y.data + row, y.stride});
    row += block->rows;
  }
}

void Executor::Pack(const Rows& x, size_t cols, size_t num_tokens, const Rows& packed) const {
  ForTokens(num_tokens, cols,
            [&](size_t token) { kernels_.pack_activations(x[token], cols, packed[token]); });
}

}  // namespace thimble
