#include "model/executor.h"

#include <algorithm>

#include "base/checked_math.h"
#include "base/error.h"

namespace thimble {
namespace {

// Rows that share one pass over the activations in the kernels.
constexpr size_t kRowGrain = 8;

}  // namespace

void Executor::MatMul(const WeightMatrix& w, const Rows& x, size_t num_tokens,
                      const Rows& y) const {
  const size_t row_cost = w.cols * num_tokens;
  const size_t grain = RoundUp(kMinFloatsPerThread / (row_cost + 1) + 1, kRowGrain);
  pool_.ParallelFor(w.rows, grain, [&](const Range& range) {
    kernels_.matmul({w.Rows(range.first, range.last - range.first), x.data, x.stride, num_tokens,
                     y.data + range.first, y.stride});
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
