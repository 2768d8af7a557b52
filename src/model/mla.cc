#include "model/mla.h"

#include <algorithm>
#include <cmath>

#include "base/checked_math.h"
#include "base/error.h"

namespace thimble {
namespace {

constexpr float kLoraEps = 1e-6F;  // of the two LoRA norms; not rms_norm_eps (docs/MODEL.md)

// Tokens of a tile: their values share a pass over a head's part of kv_b.
constexpr size_t kTileTokens = 8;

// Latents that the queries of a tile, or of a thread's tiles between two looks at the observer, may
// pass over in all: about a fifth of a second.
constexpr size_t kMostAttended = size_t{1} << 23;

// How the (token, head) pairs of a span and some heads are divided into tiles, token by token:
// tile_tokens x tile_heads each, the last ones of a row or column less.
struct Tiling {
  size_t tile_tokens;
  size_t tile_heads;
  size_t head_tiles;  // beside one another
  size_t count;
  size_t piece;  // tiles between two looks at the observer
};

Tiling Divide(const Span& span, size_t num_heads, size_t num_threads, size_t most_queries) {
  const size_t positions = span.state->num_tokens() + span.num_tokens;
  const size_t most = std::clamp<size_t>(kMostAttended / positions, 1, most_queries);
  const size_t tile_tokens = std::min({span.num_tokens, most, kTileTokens});
  const size_t token_tiles = CeilDiv(span.num_tokens, tile_tokens);
  // Few tokens leave all threads work only where the heads are divided evenly among them.
  const size_t wanted =
      RoundUp(CeilDiv(num_heads, most / tile_tokens), CeilDiv(num_threads, token_tiles));
  const size_t tile_heads = CeilDiv(num_heads, wanted);
  const size_t head_tiles = CeilDiv(num_heads, tile_heads);
  const size_t tile_cost = tile_tokens * tile_heads * positions;
  return {.tile_tokens = tile_tokens,
          .tile_heads = tile_heads,
          .head_tiles = head_tiles,
          .count = token_tiles * head_tiles,
          .piece = num_threads * std::max<size_t>(1, kMostAttended / tile_cost)};
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
  most_queries_ = std::min(kMaxAttentionQueries, max_tokens * mla.num_heads);
  absorbed_ = take(num_threads * most_queries_, mla.CacheDim());
  context_ = take(num_threads * most_queries_, mla.kv_lora_rank);
  context_packed_ = take(num_threads * most_queries_, PackedCols(mla.kv_lora_rank));
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

// kv_b streams by whole heads.
void MlaMixer::Attend(const Executor& executor, size_t layer, const SweepTokens& tokens) {
  const size_t head_rows = config_.mla.nope_dim + config_.mla.value_dim;
  for (size_t first_head = 0; first_head < config_.mla.num_heads;) {
    const auto block = executor.source().Acquire({layer, TensorRole::kKvB}, first_head * head_rows);
    THIMBLE_CHECK(block->rows > 0 && block->rows % head_rows == 0);
    const size_t num_heads = block->rows / head_rows;
    for (const Span& span : tokens.spans) {
      AttendSpan(executor, layer, span, {*block, first_head, num_heads});
    }
    first_head += num_heads;
  }
}

void MlaMixer::AttendSpan(const Executor& executor, size_t layer, const Span& span,
                          const Heads& heads) {
  const Tiling tiling = Divide(span, heads.count, executor.pool().num_threads(), most_queries_);
  const size_t head_rows = config_.mla.nope_dim + config_.mla.value_dim;
  const auto attend = [&](size_t index, size_t part) {
    const size_t token = index / tiling.head_tiles * tiling.tile_tokens;
    const size_t head = index % tiling.head_tiles * tiling.tile_heads;
    const size_t num_heads = std::min(tiling.tile_heads, heads.count - head);
    AttendTile(executor,
               {.first_row = span.first_row + token,
                .num_tokens = std::min(tiling.tile_tokens, span.num_tokens - token),
                .heads = {heads.kv_b.Rows(head * head_rows, num_heads * head_rows),
                          heads.first + head, num_heads},
                .latents = span.state->Latents(layer),
                .num_positions = span.state->num_tokens() + token + 1},
               part);
  };
  executor.ThrowIfStopped();
  executor.InPieces(tiling.count, tiling.piece, [&](size_t first, size_t count) {
    executor.pool().ParallelFor(count, 1, [&](const Range& range) {
      for (size_t i = range.first; i < range.last; ++i) attend(first + i, range.part);
    });
  });
}

void MlaMixer::AttendTile(const Executor& executor, const Tile& tile, size_t part) const {
  const MlaConfig& mla = config_.mla;
  const Kernels& kernels = executor.kernels();
  const size_t num_heads = tile.heads.count;
  const size_t num_queries = tile.num_tokens * num_heads;
  const auto of_part = [&](const Rows& rows) {
    return Rows{rows[part * most_queries_], rows.stride};
  };
  const Rows absorbed = of_part(absorbed_);
  const Rows context = of_part(context_);
  const Rows packed = of_part(context_packed_);
  const auto weights = [&](size_t head, size_t first_row, size_t num_rows) {
    return tile.heads.kv_b.Rows(head * (mla.nope_dim + mla.value_dim) + first_row, num_rows);
  };

  for (size_t head = 0; head < num_heads; ++head) {
    const WeightMatrix to_latent = weights(head, 0, mla.nope_dim);
    for (size_t i = 0; i < tile.num_tokens; ++i) {
      const float* query = query_[tile.first_row + i] + (tile.heads.first + head) * mla.QueryDim();
      float* row = absorbed[i * num_heads + head];
      kernels.transposed_matvec(to_latent, query, row);
      std::copy_n(query + mla.nope_dim, mla.extra_dim, row + mla.kv_lora_rank);
    }
  }
  kernels.mla_attend({.q = absorbed.data,
                      .num_tokens = tile.num_tokens,
                      .num_heads = num_heads,
                      .cache = tile.latents,
                      .num_positions = tile.num_positions,
                      .shape = shape_,
                      .scale = scale_,
                      .context = context.data,
                      .decoded = decoded_.data == nullptr ? nullptr : decoded_[part]});
  for (size_t i = 0; i < num_queries; ++i) {
    kernels.pack_activations(context[i], mla.kv_lora_rank, packed[i]);
  }
  for (size_t head = 0; head < num_heads; ++head) {
    kernels.matmul({weights(head, mla.nope_dim, mla.value_dim), packed[head],
                    num_heads * packed.stride, tile.num_tokens,
                    out_[tile.first_row] + (tile.heads.first + head) * mla.value_dim, out_.stride});
  }
}

}  // namespace thimble
