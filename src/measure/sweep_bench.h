#pragma once

#include <cstddef>

#include "engine/engine.h"
#include "measure/measurement.h"

namespace thimble {

/// Sweeps of a model, as a user meets them.
struct SweepMeasurement {
  Measurement speed;          // in tokens
  size_t num_tokens = 0;      // of a round
  double read_bytes = 0;      // from the drive, for each token
  double io_bound_share = 0;  // of the time: the cores waited for the drive
  double compute_bound_share = 0;
};

/// The context that both benchmarks need, or the model's if that is less.
size_t SweepBenchContext(const ModelConfig& config);

/// Decoding, a token a sweep, on a session of its own, and reading a prompt of up to 512 tokens.
/// How many tokens and rounds there are, at most five, goes by the first token's time: seconds for
/// a model in memory, a few sweeps for one far larger. First the tokens are computed twice, decoded
/// one by one and as a prompt, or as a prompt in one piece and in two; Error(kRuntime) where the
/// logits are not the same bits, then or in any round. Other errors are those of Session::Append,
/// whose `observer` may be null.
SweepMeasurement BenchDecode(Engine& engine, Session::Observer* observer);
SweepMeasurement BenchPrefill(Engine& engine, Session::Observer* observer);

}  // namespace thimble
