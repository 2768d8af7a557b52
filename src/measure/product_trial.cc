#include "measure/product_trial.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "measure/measurement.h"
#include "measure/piece_rate.h"

namespace thimble {

uint64_t ProductTrial::BufferBytes(size_t cols, size_t max_tokens, size_t max_threads) {
  const size_t inputs = 2 * max_tokens * PackedCols(cols);
  return (inputs + max_threads * max_tokens * kPieceRows) * sizeof(float);
}

ProductTrial::ProductTrial(const StoredMatrix& matrix, size_t max_tokens, size_t max_threads,
                           MemoryBudget& budget)
    : matrix_(matrix),
      max_tokens_(max_tokens),
      buffer_(budget, "activations to measure by",
              BufferBytes(matrix.view().cols, max_tokens, max_threads)),
      inputs_(reinterpret_cast<float*>(buffer_.data())),
      packed_(inputs_ + max_tokens * PackedCols(matrix.view().cols)),
      outputs_(packed_ + max_tokens * PackedCols(matrix.view().cols)) {
  const size_t cols = matrix.view().cols;
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  for (size_t i = 0; i < max_tokens * cols; ++i) inputs_[i] = uniform(random);
  for (size_t t = 0; t < max_tokens; ++t) {
    kernels_.pack_activations(inputs_ + t * cols, cols, packed_ + t * PackedCols(cols));
  }
}

double ProductTrial::BytesPerRow() const {
  return static_cast<double>(matrix_.memory().size()) / static_cast<double>(matrix_.view().rows);
}

size_t ProductTrial::RowsOf(size_t piece) const {
  return std::min(kPieceRows, matrix_.view().rows - piece * kPieceRows);
}

void ProductTrial::Multiply(size_t piece, size_t num_tokens, float* out) const {
  const WeightMatrix& all = matrix_.view();
  kernels_.matmul({.w = all.Rows(piece * kPieceRows, RowsOf(piece)),
                   .x = packed_,
                   .x_stride = PackedCols(all.cols),
                   .num_tokens = num_tokens,
                   .y = out,
                   .y_stride = kPieceRows});
}

double ProductTrial::RowsPerSecond(ThreadPool& pool, size_t num_tokens,
                                   std::chrono::milliseconds time) {
  // Whole pieces only, and each thread in a part of its own at first: it comes where another was
  // only when all of the matrix has passed.
  const size_t num_pieces = std::max<size_t>(1, matrix_.view().rows / kPieceRows);
  const auto work = [&](size_t thread, size_t count) {
    const size_t first = thread * num_pieces / pool.num_threads();
    Multiply((first + count) % num_pieces, num_tokens, OutputOf(thread));
  };
  return static_cast<double>(RowsOf(0)) * PiecesPerSecond(pool, time, work);
}

void ProductTrial::Verify(size_t num_tokens) {
  VerifyPiece(0, num_tokens);
  VerifyPiece(NumPieces() / 2, num_tokens);
  VerifyPiece(NumPieces() - 1, num_tokens);
}

void ProductTrial::VerifyPiece(size_t piece, size_t num_tokens) {
  const size_t cols = matrix_.view().cols;
  float* out = OutputOf(0);
  Multiply(piece, num_tokens, out);
  // Rows repeat by the tile, and a piece holds whole tiles.
  const size_t num_rows = std::min(RowsOf(piece), StoredMatrix::kTileRows);
  for (size_t t = 0; t < num_tokens; ++t) {
    for (size_t r = 0; r < num_rows; ++r) {
      const double* row = matrix_.Row(r);
      double sum = 0;
      double norm = 0;
      for (size_t c = 0; c < cols; ++c) {
        const double product = row[c] * inputs_[t * cols + c];
        sum += product;
        norm += std::abs(product);
      }
      const double bound = static_cast<double>(cols + 1) * 0x1p-24 * norm;
      for (size_t same = r; same < RowsOf(piece); same += StoredMatrix::kTileRows) {
        const double found = out[t * kPieceRows + same];
        if (std::abs(found - sum) <= bound) continue;
        FailCheck("the product of row " + std::to_string(piece * kPieceRows + same) +
                      " and token " + std::to_string(t),
                  sum, found);
      }
    }
  }
}

}  // namespace thimble
