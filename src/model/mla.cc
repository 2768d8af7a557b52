#include "model/mla.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace thimble {
namespace {

constexpr float kLoraEps = 1e-6F;  // of the two LoRA norms; not rms_norm_eps (docs/MODEL.md)

// Latents that the heads of a piece of work may pass over in all: a few tenths of a second.
constexpr size_t kAttendedOfAPiece = size_t{1} << 22;

size_t TokensOfAPiece(const Span& span, size_t num_heads) {
  const size_t most = (span.state->num_tokens() + span.num_tokens) * num_heads;
  return std::max<size_t>(1, kAttendedOfAPiece / most);
}

}  // namespace

MlaMixer::MlaMixer(const ModelConfig& config, const Sizes& sizes, Carver& carver)
    : config_(config), shape_{sizes.latents, config.mla.kv_lora_rank, config.mla.extra_dim} {
  const MlaConfig& mla = config.mla;
  const size_t max_tokens = sizes.max_tokens;
  const size_t num_threads = sizes.num_threads;
  const auto take = [&](size_t rows, size_t width) {
    return Rows{carver.Take<float>(rows * width), width};
  };
  scale_ = 1.0F / std::sqrt(static_cast<float>(mla.QueryDim()));
  low_query_ = take(max_tokens, mla.q_lora_rank);
  low_query_packed_ = take(max_tokens, PackedCols(mla.q_lora_rank));
  query_ = take(max_tokens, mla.num_heads * mla.QueryDim());
  kv_ = take(max_tokens, mla.CacheDim());
  gate_ = take(max_tokens, mla.num_heads * mla.value_dim);
  out_ = take(max_tokens, mla.num_heads * mla.value_dim);
  out_packed_ = take(max_tokens, PackedCols(mla.num_heads * mla.value_dim));
  absorbed_ = take(num_threads, mla.CacheDim());
  context_ = take(num_threads, mla.kv_lora_rank);
  context_packed_ = take(num_threads, PackedCols(mla.kv_lora_rank));
  if (sizes.latents == LatentFormat::kF32) return;
  decoded_ = take(num_threads, kAttentionBlock * mla.CacheDim());
}

void MlaMixer::Forward(const Executor& executor, size_t layer, const LayerParams& params,
                       const SweepTokens& tokens, const Rows& x, const Rows& y) {
  const size_t width = config_.mla.num_heads * config_.mla.value_dim;
  const size_t num_tokens = tokens.num_tokens;
  ProjectQuery(executor, layer, params, num_tokens, x);
  AppendLatents(executor, layer, params, tokens, x);
  Attend(executor, layer, tokens);
  if (config_.mla.output_gate) {
    executor.Linear({layer, TensorRole::kGate}, width, x, num_tokens, gate_);
    executor.ForTokens(num_tokens, 4 * width, [&](size_t token) {
      executor.kernels().gate(gate_[token], width, out_[token]);
    });
  }
  executor.Pack(out_, width, num_tokens, out_packed_);
  executor.Linear({layer, TensorRole::kOut}, config_.hidden_size, out_packed_, num_tokens, y);
}

void MlaMixer::ProjectQuery(const Executor& executor, size_t layer, const LayerParams& params,
                            size_t num_tokens, const Rows& x) {
  const size_t rank = config_.mla.q_lora_rank;
  const size_t width = config_.mla.num_heads * config_.mla.QueryDim();
  if (rank == 0) {
    executor.Linear({layer, TensorRole::kQuery}, width, x, num_tokens, query_);
    return;
  }
  executor.Linear({layer, TensorRole::kQueryA}, rank, x, num_tokens, low_query_);
  executor.ForTokens(num_tokens, rank, [&](size_t token) {
    float* q = low_query_[token];
    executor.kernels().rms_norm(q, params.query_norm, kLoraEps, rank, q);
  });
  executor.Pack(low_query_, rank, num_tokens, low_query_packed_);
  executor.Linear({layer, TensorRole::kQueryB}, width, low_query_packed_, num_tokens, query_);
}

void MlaMixer::AppendLatents(const Executor& executor, size_t layer, const LayerParams& params,
                             const SweepTokens& tokens, const Rows& x) {
  const MlaConfig& mla = config_.mla;
  executor.Linear({layer, TensorRole::kKvA}, mla.CacheDim(), x, tokens.num_tokens, kv_);
  for (const Span& span : tokens.spans) {
    const size_t row_bytes = shape_.RowBytes();
    uint8_t* latents = span.state->Latents(layer) + span.state->num_tokens() * row_bytes;
    executor.ForTokens(span.num_tokens, 4 * mla.CacheDim(), [&](size_t i) {
      float* kv = kv_[span.first_row + i];
      executor.kernels().rms_norm(kv, params.latent_kv_norm, kLoraEps, mla.kv_lora_rank, kv);
      EncodeLatent(shape_, kv, latents + i * row_bytes);
    });
  }
}

// kv_b streams by whole heads; each head of each token is a task of its own.
void MlaMixer::Attend(const Executor& executor, size_t layer, const SweepTokens& tokens) {
  const MlaConfig& mla = config_.mla;
  const size_t head_rows = mla.nope_dim + mla.value_dim;
  for (size_t first_head = 0; first_head < mla.num_heads;) {
    const auto block = executor.source().Acquire({layer, TensorRole::kKvB}, first_head * head_rows);
    THIMBLE_CHECK(block->rows > 0 && block->rows % head_rows == 0);
    const size_t num_heads = block->rows / head_rows;
    for (const Span& span : tokens.spans) {
      const uint8_t* latents = span.state->Latents(layer);
      const size_t width = TokensOfAPiece(span, num_heads);
      for (size_t first = 0; first < span.num_tokens; first += width) {
        executor.ThrowIfStopped();
        const size_t count = std::min(width, span.num_tokens - first);
        executor.pool().ParallelFor(count * num_heads, 1, [&](const Range& range) {
          for (size_t task = range.first; task < range.last; ++task) {
            const size_t i = first + task / num_heads;
            const size_t head = task % num_heads;
            AttendHead(executor, block->Rows(head * head_rows, head_rows), first_head + head,
                       span.first_row + i, latents, span.state->num_tokens() + i + 1, range.part);
          }
        });
      }
    }
    first_head += num_heads;
  }
}

void MlaMixer::AttendHead(const Executor& executor, const WeightMatrix& kv_b, size_t head,
                          size_t token, const uint8_t* latents, size_t num_positions, size_t part) {
  const MlaConfig& mla = config_.mla;
  const Kernels& kernels = executor.kernels();
  const float* query = query_[token] + head * mla.QueryDim();
  float* absorbed = absorbed_[part];
  kernels.transposed_matvec(kv_b.Rows(0, mla.nope_dim), query, absorbed);
  std::copy_n(query + mla.nope_dim, mla.extra_dim, absorbed + mla.kv_lora_rank);
  kernels.mla_attend({absorbed, latents, num_positions, shape_, scale_, context_[part],
                      decoded_.data == nullptr ? nullptr : decoded_[part]});
  kernels.pack_activations(context_[part], mla.kv_lora_rank, context_packed_[part]);
  kernels.matmul({kv_b.Rows(mla.nope_dim, mla.value_dim), context_packed_[part],
                  context_packed_.stride, 1, out_[token] + head * mla.value_dim, mla.value_dim});
}

}  // namespace thimble
