#include "model/decoder.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace thimble {
namespace {

[[noreturn]] void FailUsage(const std::string& message) { throw Error(ErrorCode::kUsage, message); }

size_t NumLogitRows(const SweepItem& item) {
  switch (item.wanted) {
    case LogitsWanted::kNone:
      return 0;
    case LogitsWanted::kLast:
      return 1;
    case LogitsWanted::kAll:
      return item.tokens.size();
  }
  return 0;
}

}  // namespace

Decoder::Workspace::Workspace(const ModelConfig& config, const DecoderLimits& limits,
                              Carver& carver)
    : params(LayerParams::Lay(config, carver)),
      residuals(config, limits.max_tokens, carver),
      mixed{carver.Take<float>(limits.max_tokens * config.hidden_size), config.hidden_size},
      packed{carver.Take<float>(limits.max_tokens * PackedCols(config.hidden_size)),
             PackedCols(config.hidden_size)},
      output{carver.Take<float>(limits.max_tokens * config.hidden_size), config.hidden_size},
      head_norm(carver.Take<float>(config.hidden_size)),
      head_mix(carver.Take<float>(config.hidden_size)),
      tokens(carver.Take<uint32_t>(limits.max_tokens)),
      spans(carver.Take<Span>(limits.max_sessions)),
      shared_from(carver.position()),
      kda(config, limits.max_tokens, carver.Restart(shared_from)),
      mla(config, {limits.max_tokens, limits.num_threads, limits.latents},
          carver.Restart(shared_from)),
      mlp(config, limits.max_tokens, carver.Restart(shared_from)),
      moe(config, limits.max_tokens, carver) {}

uint64_t Decoder::WorkspaceBytes(const ModelConfig& config, const DecoderLimits& limits) {
  Carver counter;
  const Workspace counted(config, limits, counter);
  return counter.used_bytes();
}

Decoder::Decoder(const ModelConfig& config, const DecoderLimits& limits, const Kernels& kernels,
                 ThreadPool& pool, LayerSource& layers, ExpertSource& experts, MemoryBudget& budget)
    : config_(config),
      limits_(limits),
      executor_(kernels, pool, layers),
      experts_(experts),
      buffer_(budget, "workspace", WorkspaceBytes(config, limits)),
      carver_(buffer_),
      work_(config, limits, carver_) {
  THIMBLE_CHECK(pool.num_threads() <= limits.num_threads);
  for (const LayerSpec& spec : config.layers) layer_tensors_.push_back(LayerTensors(config, spec));
}

void Decoder::Sweep(std::span<const SweepItem> items, SweepObserver* observer) {
  Check(items);
  const bool with_head = std::any_of(items.begin(), items.end(), [](const SweepItem& item) {
    return item.wanted != LogitsWanted::kNone;
  });
  const SweepTokens tokens = Gather(items);
  executor_.Watch(observer);
  for (const SweepItem& item : items) item.state->BeginAdvance();
  executor_.source().BeginSweep(with_head);
  executor_.source().ReadEmbeddings({work_.tokens, tokens.num_tokens},
                                    work_.residuals.current().data);
  for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
    if (observer != nullptr && !observer->OnLayer(layer)) {
      throw Error(ErrorCode::kInterrupted, "stopped before layer " + std::to_string(layer));
    }
    RunLayer(layer, tokens);
  }
  if (with_head) WriteLogits(items, tokens);
  for (const SweepItem& item : items) item.state->CommitAdvance(item.tokens.size());
}

void Decoder::CheckTokens(const StateCache& state, std::span<const uint32_t> tokens) const {
  if (tokens.empty()) FailUsage("no tokens were given, expected at least one");
  if (state.poisoned()) FailUsage("this session broke off in the middle of a token; start it anew");
  if (tokens.size() > state.capacity() - state.num_tokens()) {
    FailUsage("the context is full: it holds " + std::to_string(state.num_tokens()) + " of " +
              std::to_string(state.capacity()) + " tokens, and " + std::to_string(tokens.size()) +
              " more were given; raise -c or shorten the text");
  }
  for (const uint32_t id : tokens) {
    if (id >= config_.vocab_size) {
      FailUsage("token id " + std::to_string(id) + " is outside the vocabulary, expected 0 to " +
                std::to_string(config_.vocab_size - 1));
    }
  }
}

void Decoder::Check(std::span<const SweepItem> items) const {
  size_t num_tokens = 0;
  for (const SweepItem& item : items) {
    THIMBLE_CHECK(item.state->latent_shape().format == limits_.latents);
    CheckTokens(*item.state, item.tokens);
    num_tokens += item.tokens.size();
  }
  if (items.empty() || items.size() > limits_.max_sessions || num_tokens > limits_.max_tokens) {
    FailUsage("a sweep takes 1 to " + std::to_string(limits_.max_sessions) +
              " sessions and up to " + std::to_string(limits_.max_tokens) + " tokens, found " +
              std::to_string(items.size()) + " and " + std::to_string(num_tokens));
  }
}

SweepTokens Decoder::Gather(std::span<const SweepItem> items) {
  size_t row = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    work_.spans[i] = {items[i].state, row, items[i].tokens.size()};
    std::copy(items[i].tokens.begin(), items[i].tokens.end(), work_.tokens + row);
    row += items[i].tokens.size();
  }
  work_.residuals.Begin(row);
  return {{work_.spans, items.size()}, row};
}

// u = mix; y = Mixer(rms(u)); cur += y; u = mix; y = FFN(rms(u)); cur += y  (docs/MODEL.md, layer
// loop)
void Decoder::RunLayer(size_t layer, const SweepTokens& tokens) {
  const LayerSpec& spec = config_.layers[layer];
  LayerParams& params = work_.params;
  params.Load(config_, layer, layer_tensors_[layer], executor_);
  const auto normalise = [&](const float* mix, const float* norm) {
    executor_.ForTokens(tokens.num_tokens, 16 * config_.hidden_size,
                        [&](size_t token) { Normalise(mix, norm, token, token); });
  };

  normalise(params.attn_mix, params.input_norm);
  work_.residuals.StartLayer(layer);
  if (spec.mixer == MixerKind::kKda) {
    work_.kda.Forward(executor_, layer, params, tokens, work_.packed, work_.output);
  } else {
    work_.mla.Forward(executor_, layer, params, tokens, work_.packed, work_.output);
  }
  work_.residuals.Add(executor_, work_.output);

  normalise(params.mlp_mix, params.post_norm);
  if (spec.feed_forward == FeedForwardKind::kDense) {
    work_.mlp.Forward(executor_, layer, kDenseMlp, config_.dense_inner_size, work_.packed,
                      tokens.num_tokens, work_.output);
  } else {
    work_.moe.Forward(executor_, experts_, work_.mlp, layer, params, tokens.num_tokens,
                      work_.packed, work_.output);
  }
  work_.residuals.Add(executor_, work_.output);
  CheckFinite(layer, tokens.num_tokens);
}

// packed[row] = the packed rms(mix) of `token`.
void Decoder::Normalise(const float* mix, const float* norm, size_t token, size_t row) {
  float* mixed = work_.mixed[row];
  work_.residuals.Mix(executor_, mix, token, mixed);
  executor_.kernels().rms_norm(mixed, norm, config_.rms_eps, config_.hidden_size, mixed);
  executor_.kernels().pack_activations(mixed, config_.hidden_size, work_.packed[row]);
}

// Without this check a NaN would become token 0 from then on.
void Decoder::CheckFinite(size_t layer, size_t num_tokens) const {
  const Rows current = work_.residuals.current();
  for (size_t token = 0; token < num_tokens; ++token) {
    if (!executor_.kernels().all_finite(current[token], config_.hidden_size)) {
      throw Error(
          ErrorCode::kRuntime,
          "layer " + std::to_string(layer) +
              " gave a number that is not finite: its weights are damaged, or the model does "
              "not fit this configuration; compare the files with their published checksums");
    }
  }
}

void Decoder::WriteLogits(std::span<const SweepItem> items, const SweepTokens& tokens) {
  const size_t hidden = config_.hidden_size;
  LoadVector({kNoLayer, TensorRole::kFinalNorm}, hidden, executor_, work_.head_norm);
  if (config_.attn_res_block != 0) {
    LoadVector({kNoLayer, TensorRole::kOutputResNorm}, hidden, executor_, work_.head_mix);
    LoadVector({kNoLayer, TensorRole::kOutputResProj}, hidden, executor_, work_.params.scratch);
    executor_.kernels().multiply(work_.params.scratch, hidden, work_.head_mix);
  }
  size_t row = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const Span& span = tokens.spans[i];
    const size_t end = span.first_row + span.num_tokens;
    for (size_t token = end - NumLogitRows(items[i]); token < end; ++token) {
      Normalise(work_.head_mix, work_.head_norm, token, row++);
    }
  }
  // Each block of the head serves all rows before the next comes.
  for (size_t first = 0; first < config_.vocab_size;) {
    const auto block = executor_.source().Acquire({kNoLayer, TensorRole::kHead}, first);
    THIMBLE_CHECK(block->rows > 0 && block->rows <= config_.vocab_size - first);
    row = 0;
    for (const SweepItem& item : items) {
      const size_t count = NumLogitRows(item);
      if (count == 0) continue;
      executor_.MatMul(*block, {work_.packed[row], work_.packed.stride}, count,
                       {item.logits + first, config_.vocab_size});
      row += count;
    }
    first += block->rows;
  }
  CheckLogits(items);
}

// The states were finite, so that the fault lies behind them.
void Decoder::CheckLogits(std::span<const SweepItem> items) const {
  for (const SweepItem& item : items) {
    for (size_t row = 0; row < NumLogitRows(item); ++row) {
      const float* logits = item.logits + row * config_.vocab_size;
      if (executor_.kernels().all_finite(logits, config_.vocab_size)) continue;
      throw Error(ErrorCode::kRuntime,
                  "the output head (lm_head.weight) or the norm before it gave logits that are not "
                  "finite: its weights are damaged; compare the files with their published "
                  "checksums");
    }
  }
}

}  // namespace thimble
