#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "measure/stored_matrix.h"
#include "memory/buffer.h"

namespace thimble {

/// Products of one matrix with up to `max_tokens` activation rows, by pieces of a few rows, as the
/// threads of an engine would compute them. Borrows the matrix; buffers are charged to `budget`.
class ProductTrial {
 public:
  ProductTrial(const StoredMatrix& matrix, size_t max_tokens, size_t max_threads,
               MemoryBudget& budget);

  /// What is charged.
  static uint64_t BufferBytes(size_t cols, size_t max_tokens, size_t max_threads);

  /// Error(kRuntime) where the product with `num_tokens` rows differs from a sum in double
  /// precision by more than float32's rounding explains.
  void Verify(size_t num_tokens);
  /// Rows that all threads together multiply in a second.
  double RowsPerSecond(ThreadPool& pool, size_t num_tokens, std::chrono::milliseconds time);
  double BytesPerRow() const;

 private:
  static constexpr size_t kPieceRows = 64;

  size_t NumPieces() const { return (matrix_.view().rows + kPieceRows - 1) / kPieceRows; }
  size_t RowsOf(size_t piece) const;
  float* OutputOf(size_t thread) { return outputs_ + thread * max_tokens_ * kPieceRows; }
  void Multiply(size_t piece, size_t num_tokens, float* out) const;
  void VerifyPiece(size_t piece, size_t num_tokens);

  const Kernels& kernels_ = BestKernels();
  const StoredMatrix& matrix_;
  const size_t max_tokens_;
  Buffer buffer_;
  float* inputs_;   // [max_tokens, cols], natural order
  float* packed_;   // the same, as the kernels want it
  float* outputs_;  // [thread][max_tokens, kPieceRows]
};

}  // namespace thimble
