#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "format/model_config.h"
#include "format/tensor_role.h"
#include "support/file_edit.h"

namespace thimble {

/// Dimensions of a synthetic model. The defaults are a model of under a megabyte that still has
/// every part: KDA and MLA layers, a dense layer, a last MLA right after another, two residual
/// blocks and a partial third.
struct CheckpointDims {
  size_t hidden = 64;
  size_t vocab = 96;
  size_t layers = 5;
  size_t kda_heads = 2;
  size_t kda_head_dim = 16;
  size_t conv_width = 4;
  size_t a_log_length =
      8;  // padded beyond the heads, as K3 pads; Kimi-Linear stores [1, 1, heads, 1]
  size_t mla_heads = 2;
  size_t q_lora = 24;  // K3 only
  size_t kv_lora = 16;
  size_t nope = 8;
  size_t extra = 8;
  size_t value = 16;
  size_t dense_inner = 96;
  size_t dense_layers = 1;
  size_t experts = 8;
  size_t top_k = 2;
  size_t expert_inner = 32;
  size_t latent = 32;  // K3 only
  size_t shared_experts = 2;
  size_t res_block = 2;  // K3 only
  size_t max_context = 256;
  uint64_t seed = 1;
};

/// Writes small, valid checkpoints with seeded random weights, laid out as the published ones: a
/// shard for each layer, one more for embedding, head and final norms, an index and config.json.
///
///   TempDir dir;
///   CheckpointBuilder::KimiK3().Write(dir.path());
///
/// Everything may be edited before Write: the configuration, and each tensor's name, type, shape,
/// bytes and shard. To damage files afterwards, see EditHeader below and file_edit.h.
class CheckpointBuilder {
 public:
  struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<uint64_t> shape;
    std::string bytes;
    size_t shard = 0;
  };

  /// K3: residual mixing, latent MoE with MXFP4 experts, SiTU, bounded decay, gated MLA, q_lora.
  static CheckpointBuilder KimiK3(const CheckpointDims& dims = {}) {
    return CheckpointBuilder(dims, Architecture::kKimiK3);
  }
  /// Kimi-Linear: plain residuals, BF16 experts at full width, SiLU, softplus decay.
  static CheckpointBuilder KimiLinear(const CheckpointDims& dims = {}) {
    return CheckpointBuilder(dims, Architecture::kKimiLinear);
  }

  /// The text of config.json. Editing it does not change the tensors, which were made from it.
  nlohmann::json& config() { return config_; }
  /// The object that holds the text model's fields: `text_config` or all.
  nlohmann::json& text_config() { return TextOf(config_); }
  std::vector<Tensor>& tensors() { return tensors_; }
  Tensor& FindTensor(const std::string& name) {
    const auto found = std::ranges::find(tensors_, name, &Tensor::name);
    if (found == tensors_.end()) throw std::runtime_error("no tensor " + name);
    return *found;
  }
  /// Removes one tensor from shards and index.
  void RemoveTensor(const std::string& name) { tensors_.erase(Position(FindTensor(name))); }
  /// Edits the index just before it is written.
  void EditIndex(std::function<void(nlohmann::ordered_json&)> edit) {
    edit_index_ = std::move(edit);
  }

  std::string ShardName(size_t shard) const {
    return "model-" + Padded(shard + 1, 5) + "-of-" + Padded(num_shards_, 6) + ".safetensors";
  }

  void Write(const std::filesystem::path& dir) const {
    WriteConfig(dir);
    nlohmann::ordered_json index = {{"metadata", {{"total_size", TotalBytes()}}},
                                    {"weight_map", nlohmann::ordered_json::object()}};
    for (const Tensor& tensor : tensors_)
      index["weight_map"][tensor.name] = ShardName(tensor.shard);
    if (edit_index_) edit_index_(index);
    WriteText(dir / "model.safetensors.index.json", index.dump(1));
    for (size_t shard = 0; shard < num_shards_; ++shard) WriteShard(dir / ShardName(shard), shard);
  }

  /// The same model as one file without an index.
  void WriteSingleFile(const std::filesystem::path& dir) const {
    WriteConfig(dir);
    CheckpointBuilder whole = *this;
    for (Tensor& tensor : whole.tensors_) tensor.shard = 0;
    whole.WriteShard(dir / "model.safetensors", 0);
  }

  /// Header length and header of a safetensors file, padded to eight bytes as published.
  static std::string SafetensorsHead(std::string header) {
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string length;
    for (size_t i = 0; i < 8; ++i) length.push_back(static_cast<char>(header.size() >> (8 * i)));
    return length + header;
  }

 private:
  CheckpointBuilder(const CheckpointDims& dims, Architecture architecture)
      : dims_(dims), is_k3_(architecture == Architecture::kKimiK3), random_(dims.seed) {
    MakeConfig();
    const ModelConfig config = ParseModelConfig(config_.dump(), "synthetic config.json");
    num_shards_ = config.num_layers() + 1;
    for (size_t layer = 0; layer < config.num_layers(); ++layer) AddLayer(config, layer);
    for (const TensorSpec& spec : GlobalTensors(config)) {
      AddTrunk(spec, Prefix() + std::string(spec.name), num_shards_ - 1);
    }
  }

  std::string Prefix() const { return is_k3_ ? "language_model." : ""; }
  nlohmann::json& TextOf(nlohmann::json& config) const {
    return is_k3_ ? config["text_config"] : config;
  }
  std::vector<Tensor>::iterator Position(const Tensor& tensor) {
    return tensors_.begin() + (&tensor - tensors_.data());
  }
  static std::string Padded(size_t number, size_t width) {
    const std::string digits = std::to_string(number);
    return std::string(width - std::min(width, digits.size()), '0') + digits;
  }

  // Every third layer is MLA, and the last.
  bool IsMla(size_t layer) const { return layer % 3 == 2 || layer + 1 == dims_.layers; }

  void MakeConfig() {
    nlohmann::json text = CommonFields();
    if (is_k3_) {
      AddK3Fields(&text);
      config_ = {
          {"model_type", "kimi_k3"},         {"architectures", {"KimiK3ForConditionalGeneration"}},
          {"bos_token_id", dims_.vocab - 6}, {"eos_token_id", dims_.vocab - 4},
          {"tie_word_embeddings", false},    {"text_config", std::move(text)}};
    } else {
      config_ = std::move(text);
      config_["architectures"] = {"KimiLinearForCausalLM"};
    }
  }

  nlohmann::json CommonFields() const {
    nlohmann::json kda = nlohmann::json::array();
    nlohmann::json full = nlohmann::json::array();
    for (size_t i = 0; i < dims_.layers; ++i) (IsMla(i) ? full : kda).push_back(i + 1);
    return {{"model_type", "kimi_linear"},
            {"hidden_size", dims_.hidden},
            {"vocab_size", dims_.vocab},
            {"num_hidden_layers", dims_.layers},
            {"intermediate_size", dims_.dense_inner},
            {"hidden_act", "silu"},
            {"rms_norm_eps", 1e-5},
            {"max_position_embeddings", dims_.max_context},
            {"tie_word_embeddings", false},
            {"bos_token_id", dims_.vocab - 6},
            {"eos_token_id", dims_.vocab - 4},
            {"linear_attn_config",
             {{"full_attn_layers", full},
              {"kda_layers", kda},
              {"head_dim", dims_.kda_head_dim},
              {"num_heads", dims_.kda_heads},
              {"short_conv_kernel_size", dims_.conv_width}}},
            {"num_attention_heads", dims_.mla_heads},
            {"num_key_value_heads", dims_.mla_heads},
            {"q_lora_rank", nullptr},
            {"kv_lora_rank", dims_.kv_lora},
            {"qk_nope_head_dim", dims_.nope},
            {"qk_rope_head_dim", dims_.extra},
            {"v_head_dim", dims_.value},
            {"mla_use_nope", true},
            {"first_k_dense_replace", dims_.dense_layers},
            {"moe_layer_freq", 1},
            {"num_experts", dims_.experts},
            {"num_experts_per_token", dims_.top_k},
            {"num_shared_experts", dims_.shared_experts},
            {"moe_intermediate_size", dims_.expert_inner},
            {"moe_renormalize", true},
            {"moe_router_activation_func", "sigmoid"},
            {"num_expert_group", 1},
            {"topk_group", 1},
            {"routed_scaling_factor", is_k3_ ? 1.0 : 2.446},
            {"num_nextn_predict_layers", 0}};
  }

  void AddK3Fields(nlohmann::json* text) const {
    text->update({{"hidden_act", "situ"},
                  {"activation_situ_beta", 4.0},
                  {"activation_situ_linear_beta", 25.0},
                  {"attn_res_block_size", dims_.res_block},
                  {"q_lora_rank", dims_.q_lora},
                  {"mla_use_output_gate", true},
                  {"routed_expert_hidden_size", dims_.latent},
                  {"latent_moe_use_norm", true},
                  {"quantization_config",
                   {{"quant_method", "compressed-tensors"},
                    {"format", "mxfp4-pack-quantized"},
                    {"config_groups",
                     {{"group_0",
                       {{"format", "mxfp4-pack-quantized"},
                        {"input_activations", nullptr},
                        {"targets", {"Linear"}},
                        {"weights",
                         {{"num_bits", 4},
                          {"group_size", 32},
                          {"type", "float"},
                          {"symmetric", true}}}}}}}}}});
    (*text)["linear_attn_config"].update(
        {{"gate_lower_bound", -5.0}, {"use_full_rank_gate", true}});
  }

  void AddLayer(const ModelConfig& config, size_t layer) {
    const std::string prefix = Prefix() + "model.layers." + std::to_string(layer) + ".";
    const LayerSpec& spec = config.layers[layer];
    for (const TensorSpec& tensor : LayerTensors(config, spec)) {
      AddTrunk(tensor, prefix + std::string(tensor.name), layer);
    }
    if (spec.feed_forward == FeedForwardKind::kDense) return;
    for (size_t expert = 0; expert < config.moe.num_experts; ++expert) {
      for (const ExpertTensorSpec& piece : ExpertTensors(config)) {
        tensors_.push_back({prefix + "block_sparse_moe.experts." + std::to_string(expert) + "." +
                                std::string(piece.name),
                            std::string(NameOf(piece.dtype)),
                            {piece.rows, piece.cols},
                            ExpertBytes(piece),
                            layer});
      }
    }
  }

  void AddTrunk(const TensorSpec& spec, std::string name, size_t shard) {
    Tensor tensor = {std::move(name), "BF16", {spec.rows, spec.cols}, {}, shard};
    switch (spec.role) {
      case TensorRole::kQueryConv:
      case TensorRole::kKeyConv:
      case TensorRole::kValueConv:
        tensor.shape = {spec.rows, 1, spec.cols};
        if (is_k3_) tensor.dtype = "F32";
        break;
      case TensorRole::kALog:
        tensor.shape = is_k3_ ? std::vector<uint64_t>{std::max(dims_.a_log_length, spec.cols)}
                              : std::vector<uint64_t>{1, 1, spec.cols, 1};
        tensor.dtype = "F32";
        break;
      case TensorRole::kDtBias:
      case TensorRole::kRouterBias:
        tensor.dtype = "F32";
        tensor.shape = {spec.cols};
        break;
      case TensorRole::kOutNorm:
        if (is_k3_) tensor.dtype = "F32";
        tensor.shape = {spec.cols};
        break;
      case TensorRole::kAttnResProj:
      case TensorRole::kMlpResProj:
      case TensorRole::kOutputResProj:
        break;
      default:
        if (!IsMatrix(spec.role)) tensor.shape = {spec.cols};
    }
    size_t count = 1;
    for (const uint64_t dim : tensor.shape) count *= dim;
    for (size_t i = 0; i < count; ++i) {
      const bool padding = spec.role == TensorRole::kALog && i >= spec.cols;
      AppendFloat(padding ? 0.0F : Draw(spec), tensor.dtype == "F32", &tensor.bytes);
    }
    tensors_.push_back(std::move(tensor));
  }

  // Values that keep activations near one and decays, gates and router choices varied.
  float Draw(const TensorSpec& spec) {
    switch (spec.role) {
      case TensorRole::kEmbedding:
        return Normal(1.0F);
      case TensorRole::kALog:
        return Normal(0.5F);
      case TensorRole::kDtBias:
        return Normal(1.0F) - 2.0F;
      case TensorRole::kRouterBias:
        return Normal(0.1F);
      case TensorRole::kQueryConv:
      case TensorRole::kKeyConv:
      case TensorRole::kValueConv:
        return Normal(0.5F);
      default:
        break;
    }
    const bool is_norm = spec.name.find("norm") != std::string_view::npos;
    return is_norm ? 1.0F + Normal(0.1F) : Normal(1.0F / std::sqrt(static_cast<float>(spec.cols)));
  }

  // The sum of twelve uniform values: the standard library's distributions differ between
  // implementations, this does not.
  float Normal(float scale) {
    double sum = -6.0;
    for (int draw = 0; draw < 3; ++draw) {
      const uint64_t bits = random_();
      for (int i = 0; i < 4; ++i) sum += static_cast<double>(bits >> (16 * i) & 0xFFFF) * 0x1p-16;
    }
    return scale * static_cast<float>(sum);
  }

  static void AppendFloat(float value, bool as_f32, std::string* bytes) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
    const uint32_t stored = as_f32 ? bits : rounded >> 16;
    for (size_t i = 0; i < (as_f32 ? 4U : 2U); ++i) {
      bytes->push_back(static_cast<char>(stored >> (8 * i)));
    }
  }

  std::string ExpertBytes(const ExpertTensorSpec& piece) {
    std::string bytes;
    const size_t count = piece.rows * piece.cols;
    const bool is_scale = piece.name.ends_with("_scale");
    const float deviation = 1.0F / std::sqrt(static_cast<float>(piece.cols));
    for (size_t i = 0; i < count; ++i) {
      if (piece.dtype == DType::kBF16) {
        AppendFloat(Normal(deviation), false, &bytes);
      } else if (is_scale) {
        // E2M1 codes deviate by about 3; the scale brings that to 1 / sqrt(inputs).
        const float inputs = static_cast<float>(piece.cols * kMxGroup);
        const int exponent = static_cast<int>(std::lround(-std::log2(3.0F * std::sqrt(inputs))));
        bytes.push_back(static_cast<char>(127 + exponent + static_cast<int>(random_() % 3) - 1));
      } else {
        bytes.push_back(static_cast<char>(random_() & 0xFF));
      }
    }
    return bytes;
  }

  uint64_t TotalBytes() const {
    uint64_t total = 0;
    for (const Tensor& tensor : tensors_) total += tensor.bytes.size();
    return total;
  }

  void WriteConfig(const std::filesystem::path& dir) const {
    WriteText(dir / "config.json", config_.dump(1));
  }

  void WriteShard(const std::filesystem::path& path, size_t shard) const {
    nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
    std::string data;
    for (const Tensor& tensor : tensors_) {
      if (tensor.shard != shard) continue;
      header[tensor.name] = {{"dtype", tensor.dtype},
                             {"shape", tensor.shape},
                             {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    WriteText(path, SafetensorsHead(header.dump()) + data);
  }

  CheckpointDims dims_;
  bool is_k3_;
  std::mt19937_64 random_;
  size_t num_shards_ = 0;
  nlohmann::json config_;
  std::vector<Tensor> tensors_;
  std::function<void(nlohmann::ordered_json&)> edit_index_;
};

/// Rewrites the header of a shard as text; data stay as they are.
inline void EditHeader(const std::filesystem::path& path,
                       const std::function<std::string(std::string)>& edit) {
  const std::string bytes = ReadBytes(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  WriteText(path, CheckpointBuilder::SafetensorsHead(edit(bytes.substr(8, length))) +
                      bytes.substr(8 + length));
}

/// Rewrites the header of a shard as JSON.
inline void EditHeaderJson(const std::filesystem::path& path,
                           const std::function<void(nlohmann::ordered_json&)>& edit) {
  EditHeader(path, [&](const std::string& header) {
    auto json = nlohmann::ordered_json::parse(header);
    edit(json);
    return json.dump();
  });
}

}  // namespace thimble
