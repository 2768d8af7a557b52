#include "format/tensor_role.h"

namespace thimble {
namespace {

using enum TensorRole;

using Specs = std::vector<TensorSpec>;

void AddNorms(const ModelConfig& c, Specs* specs) {
  const size_t hidden = c.hidden_size;
  specs->push_back({kInputNorm, "input_layernorm.weight", 1, hidden});
  specs->push_back({kPostNorm, "post_attention_layernorm.weight", 1, hidden});
  if (c.attn_res_block == 0) return;
  specs->push_back({kAttnResNorm, "self_attention_res_norm.weight", 1, hidden});
  specs->push_back({kAttnResProj, "self_attention_res_proj.weight", 1, hidden});
  specs->push_back({kMlpResNorm, "mlp_res_norm.weight", 1, hidden});
  specs->push_back({kMlpResProj, "mlp_res_proj.weight", 1, hidden});
}

void AddKdaSmall(const KdaConfig& kda, Specs* specs) {
  const size_t width = kda.ProjectionSize();
  specs->push_back({kQueryConv, "self_attn.q_conv1d.weight", width, kda.conv_width});
  specs->push_back({kKeyConv, "self_attn.k_conv1d.weight", width, kda.conv_width});
  specs->push_back({kValueConv, "self_attn.v_conv1d.weight", width, kda.conv_width});
  specs->push_back({kALog, "self_attn.A_log", 1, kda.num_heads});
  specs->push_back({kDtBias, "self_attn.dt_bias", 1, width});
  specs->push_back({kOutNorm, "self_attn.o_norm.weight", 1, kda.head_dim});
}

void AddKdaMatrices(const ModelConfig& c, Specs* specs) {
  const size_t hidden = c.hidden_size;
  const size_t width = c.kda.ProjectionSize();
  const size_t rank = c.kda.head_dim;
  specs->push_back({kQuery, "self_attn.q_proj.weight", width, hidden});
  specs->push_back({kKey, "self_attn.k_proj.weight", width, hidden});
  specs->push_back({kValue, "self_attn.v_proj.weight", width, hidden});
  specs->push_back({kDecayA, "self_attn.f_a_proj.weight", rank, hidden});
  specs->push_back({kDecayB, "self_attn.f_b_proj.weight", width, rank});
  specs->push_back({kBeta, "self_attn.b_proj.weight", c.kda.num_heads, hidden});
  if (c.kda.full_rank_gate) {
    specs->push_back({kGate, "self_attn.g_proj.weight", width, hidden});
  } else {
    specs->push_back({kGateA, "self_attn.g_a_proj.weight", rank, hidden});
    specs->push_back({kGateB, "self_attn.g_b_proj.weight", width, rank});
  }
  specs->push_back({kOut, "self_attn.o_proj.weight", hidden, width});
}

void AddMlaSmall(const MlaConfig& mla, Specs* specs) {
  if (mla.q_lora_rank != 0) {
    specs->push_back({kQueryANorm, "self_attn.q_a_layernorm.weight", 1, mla.q_lora_rank});
  }
  specs->push_back({kKvANorm, "self_attn.kv_a_layernorm.weight", 1, mla.kv_lora_rank});
}

void AddMlaMatrices(const ModelConfig& c, Specs* specs) {
  const MlaConfig& mla = c.mla;
  const size_t queries = mla.num_heads * mla.QueryDim();
  const size_t values = mla.num_heads * mla.value_dim;
  if (mla.q_lora_rank != 0) {
    specs->push_back({kQueryA, "self_attn.q_a_proj.weight", mla.q_lora_rank, c.hidden_size});
    specs->push_back({kQueryB, "self_attn.q_b_proj.weight", queries, mla.q_lora_rank});
  } else {
    specs->push_back({kQuery, "self_attn.q_proj.weight", queries, c.hidden_size});
  }
  specs->push_back({kKvA, "self_attn.kv_a_proj_with_mqa.weight", mla.CacheDim(), c.hidden_size});
  specs->push_back({kKvB, "self_attn.kv_b_proj.weight",
                    mla.num_heads * (mla.nope_dim + mla.value_dim), mla.kv_lora_rank});
  if (mla.output_gate) {
    specs->push_back({kGate, "self_attn.g_proj.weight", values, c.hidden_size});
  }
  specs->push_back({kOut, "self_attn.o_proj.weight", c.hidden_size, values});
}

void AddMoeSmall(const MoeConfig& moe, Specs* specs) {
  specs->push_back(
      {kRouterBias, "block_sparse_moe.gate.e_score_correction_bias", 1, moe.num_experts});
  if (moe.latent_norm) {
    specs->push_back(
        {kLatentNorm, "block_sparse_moe.routed_expert_norm.weight", 1, moe.latent_size});
  }
}

void AddMoeMatrices(const ModelConfig& c, Specs* specs) {
  const size_t hidden = c.hidden_size;
  const size_t latent = c.moe.latent_size;
  const size_t shared = c.moe.shared_inner_size;
  specs->push_back({kRouter, "block_sparse_moe.gate.weight", c.moe.num_experts, hidden});
  if (latent != 0) {
    specs->push_back(
        {kLatentDown, "block_sparse_moe.routed_expert_down_proj.weight", latent, hidden});
  }
  if (shared != 0) {
    specs->push_back(
        {kSharedGate, "block_sparse_moe.shared_experts.gate_proj.weight", shared, hidden});
    specs->push_back({kSharedUp, "block_sparse_moe.shared_experts.up_proj.weight", shared, hidden});
    specs->push_back(
        {kSharedDown, "block_sparse_moe.shared_experts.down_proj.weight", hidden, shared});
  }
  if (latent != 0) {
    specs->push_back({kLatentUp, "block_sparse_moe.routed_expert_up_proj.weight", hidden, latent});
  }
}

void AddDenseMatrices(const ModelConfig& c, Specs* specs) {
  const size_t inner = c.dense_inner_size;
  specs->push_back({kDenseGate, "mlp.gate_proj.weight", inner, c.hidden_size});
  specs->push_back({kDenseUp, "mlp.up_proj.weight", inner, c.hidden_size});
  specs->push_back({kDenseDown, "mlp.down_proj.weight", c.hidden_size, inner});
}

}  // namespace

std::vector<TensorSpec> LayerTensors(const ModelConfig& config, const LayerSpec& spec) {
  const bool is_kda = spec.mixer == MixerKind::kKda;
  const bool is_moe = spec.feed_forward == FeedForwardKind::kMoe;
  Specs specs;
  AddNorms(config, &specs);
  is_kda ? AddKdaSmall(config.kda, &specs) : AddMlaSmall(config.mla, &specs);
  if (is_moe) AddMoeSmall(config.moe, &specs);
  is_kda ? AddKdaMatrices(config, &specs) : AddMlaMatrices(config, &specs);
  is_moe ? AddMoeMatrices(config, &specs) : AddDenseMatrices(config, &specs);
  return specs;
}

std::vector<TensorSpec> GlobalTensors(const ModelConfig& config) {
  const size_t hidden = config.hidden_size;
  Specs specs = {{kEmbedding, "model.embed_tokens.weight", config.vocab_size, hidden},
                 {kFinalNorm, "model.norm.weight", 1, hidden}};
  if (config.attn_res_block != 0) {
    specs.push_back({kOutputResNorm, "model.output_attn_res_norm.weight", 1, hidden});
    specs.push_back({kOutputResProj, "model.output_attn_res_proj.weight", 1, hidden});
  }
  specs.push_back({kHead, "lm_head.weight", config.vocab_size, hidden});
  return specs;
}

std::vector<ExpertTensorSpec> ExpertTensors(const ModelConfig& config) {
  using enum ExpertTensor;
  const size_t inner = config.moe.inner_size;
  const size_t width = config.ExpertWidth();
  if (config.moe.format != WeightFormat::kMXFP4) {
    return {{ExpertTensor::kGate, "w1.weight", DType::kBF16, inner, width},
            {kDown, "w2.weight", DType::kBF16, width, inner},
            {kUp, "w3.weight", DType::kBF16, inner, width}};
  }
  return {{ExpertTensor::kGate, "w1.weight_packed", DType::kU8, inner, width / 2},
          {kGateScales, "w1.weight_scale", DType::kU8, inner, width / kMxGroup},
          {kDown, "w2.weight_packed", DType::kU8, width, inner / 2},
          {kDownScales, "w2.weight_scale", DType::kU8, width, inner / kMxGroup},
          {kUp, "w3.weight_packed", DType::kU8, inner, width / 2},
          {kUpScales, "w3.weight_scale", DType::kU8, inner, width / kMxGroup}};
}

uint64_t ExpertBytes(const ModelConfig& config) {
  uint64_t bytes = 0;
  for (const ExpertTensorSpec& piece : ExpertTensors(config)) bytes += piece.Bytes();
  return bytes;
}

bool IsMatrix(TensorRole role) {
  switch (role) {
    case kEmbedding:
    case kHead:
    case kQuery:
    case kKey:
    case kValue:
    case kDecayA:
    case kDecayB:
    case kBeta:
    case TensorRole::kGate:
    case kGateA:
    case kGateB:
    case kOut:
    case kQueryA:
    case kQueryB:
    case kKvA:
    case kKvB:
    case kDenseGate:
    case kDenseUp:
    case kDenseDown:
    case kRouter:
    case kLatentDown:
    case kLatentUp:
    case kSharedGate:
    case kSharedUp:
    case kSharedDown:
      return true;
    default:
      return false;
  }
}

}  // namespace thimble
