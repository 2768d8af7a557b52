#include "format/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "format/config_json.h"
#include "format/model_files.h"
#include "format/tensor_role.h"
#include "io/foreign_file.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
constexpr size_t kDimLimit = size_t{1} << 31;
// Far above any published model; they bound the tables that are built from a configuration.
constexpr size_t kMaxLayers = 1024;
constexpr size_t kMaxExperts = 16384;
constexpr uint64_t kMaxModelBytes = uint64_t{1} << 62;
constexpr size_t kMaxConvWidth = 8;
constexpr const char* kQuantMethod = "compressed-tensors";
constexpr const char* kMxfp4Format = "mxfp4-pack-quantized";

Architecture ReadArchitecture(const JsonFields& top) {
  const std::string type = top.Text("model_type");
  if (type == "kimi_k3") return Architecture::kKimiK3;
  if (type == "kimi_linear") return Architecture::kKimiLinear;
  top.Fail("model_type", "an architecture that Thimble runs: kimi_k3 or kimi_linear",
           "models of other architectures are not supported");
}

// a * b for a size that is derived from field `key`.
size_t Product(const JsonFields& fields, const char* key, std::array<size_t, 2> factors) {
  const std::optional<size_t> product = CheckedMul(factors[0], factors[1]);
  fields.Check(product && *product < kDimLimit, key,
               "a product with the sizes it multiplies below 2^31");
  return *product;
}

// Everywhere a field that is absent or false means the ordinary model.
void CheckUnsupported(const JsonFields& fields) {
  if (fields.MaybeBool("tie_word_embeddings").value_or(false)) {
    fields.Fail("tie_word_embeddings", "false", "tied embeddings are not supported");
  }
  if (fields.MaybeNonNegative("num_nextn_predict_layers").value_or(0) != 0) {
    fields.Fail("num_nextn_predict_layers", "0", "prediction layers are not supported");
  }
}

void ReadSizes(const JsonFields& text, ModelConfig* config) {
  config->hidden_size = text.Positive("hidden_size");
  config->vocab_size = text.Positive("vocab_size");
  const bool is_position = text.Has("max_position_embeddings") || !text.Has("model_max_length");
  config->max_context = text.Positive(is_position ? "max_position_embeddings" : "model_max_length");
  config->rms_eps = text.Number("rms_norm_eps");
  text.Check(config->rms_eps > 0 && config->rms_eps < 1, "rms_norm_eps", "a number in (0, 1)");
  config->dense_inner_size = text.Positive("intermediate_size");
  config->attn_res_block = text.MaybePositive("attn_res_block_size").value_or(0);
}

// Marks the layers that one of the two lists names, counting from 1.
void MarkLayers(const JsonFields& linear, const char* key,
                std::vector<std::optional<MixerKind>>* mixers) {
  const MixerKind kind = key == std::string_view("kda_layers") ? MixerKind::kKda : MixerKind::kMla;
  for (const size_t number : linear.PositiveList(key)) {
    linear.Check(number <= mixers->size(), key,
                 "layers from 1 to " + std::to_string(mixers->size()) + " (num_hidden_layers)");
    std::optional<MixerKind>& mixer = (*mixers)[number - 1];
    linear.Check(!mixer, key,
                 "every layer in one of kda_layers and full_attn_layers, once (layer " +
                     std::to_string(number) + " is named twice)");
    mixer = kind;
  }
}

std::vector<MixerKind> ReadMixers(const JsonFields& text, size_t num_layers) {
  const JsonFields linear = text.Object("linear_attn_config");
  std::vector<std::optional<MixerKind>> mixers(num_layers);
  MarkLayers(linear, "kda_layers", &mixers);
  MarkLayers(linear, "full_attn_layers", &mixers);
  std::vector<MixerKind> result;
  for (const std::optional<MixerKind>& mixer : mixers) {
    linear.Check(mixer.has_value(), "full_attn_layers",
                 "every layer in one of kda_layers and full_attn_layers, once (layer " +
                     std::to_string(result.size() + 1) + " is in neither)");
    result.push_back(*mixer);
  }
  return result;
}

std::vector<LayerSpec> ReadLayers(const JsonFields& text) {
  const size_t num_layers = text.Positive("num_hidden_layers");
  text.Check(num_layers <= kMaxLayers, "num_hidden_layers",
             "at most " + std::to_string(kMaxLayers));
  const size_t num_dense = text.NonNegative("first_k_dense_replace");
  const size_t frequency = text.MaybePositive("moe_layer_freq").value_or(1);
  std::vector<LayerSpec> layers;
  for (const MixerKind mixer : ReadMixers(text, num_layers)) {
    const size_t layer = layers.size();
    const bool is_moe = layer >= num_dense && layer % frequency == 0;
    layers.push_back({mixer, is_moe ? FeedForwardKind::kMoe : FeedForwardKind::kDense});
  }
  return layers;
}

KdaConfig ReadKda(const JsonFields& linear) {
  KdaConfig kda;
  kda.num_heads = linear.Positive("num_heads");
  kda.head_dim = linear.Positive("head_dim");
  Product(linear, "head_dim", {kda.num_heads, kda.head_dim});
  kda.conv_width = linear.Positive("short_conv_kernel_size");
  linear.Check(kda.conv_width <= kMaxConvWidth, "short_conv_kernel_size",
               "a width from 1 to " + std::to_string(kMaxConvWidth));
  kda.gate_lower_bound = linear.MaybeNumber("gate_lower_bound");
  linear.Check(kda.gate_lower_bound.value_or(-1.0F) < 0, "gate_lower_bound",
               "a negative number, or null");
  kda.full_rank_gate = linear.MaybeBool("use_full_rank_gate").value_or(false);
  return kda;
}

MlaConfig ReadMla(const JsonFields& text) {
  text.Check(text.Bool("mla_use_nope"), "mla_use_nope", "true: rotary positions are not supported");
  MlaConfig mla;
  mla.num_heads = text.Positive("num_attention_heads");
  const size_t kv_heads = text.MaybePositive("num_key_value_heads").value_or(mla.num_heads);
  text.Check(kv_heads == mla.num_heads, "num_key_value_heads",
             "num_attention_heads (" + std::to_string(mla.num_heads) + ")");
  mla.q_lora_rank = text.MaybePositive("q_lora_rank").value_or(0);
  mla.kv_lora_rank = text.Positive("kv_lora_rank");
  mla.nope_dim = text.Positive("qk_nope_head_dim");
  mla.extra_dim = text.Positive("qk_rope_head_dim");
  mla.value_dim = text.Positive("v_head_dim");
  mla.output_gate = text.MaybeBool("mla_use_output_gate").value_or(false);
  Product(text, "qk_rope_head_dim", {mla.num_heads, mla.QueryDim()});
  Product(text, "v_head_dim", {mla.num_heads, mla.nope_dim + mla.value_dim});
  text.Check(mla.CacheDim() < kDimLimit, "kv_lora_rank", "a sum with qk_rope_head_dim below 2^31");
  return mla;
}

void CheckQuantization(bool holds, const JsonFields& fields, const char* key,
                       const std::string& expected) {
  if (holds) return;
  fields.Fail(key, expected,
              "other quantizations are not supported; take the model as its makers published it, "
              "with experts in BF16 or MXFP4");
}

// What the quantization of one group of tensors must be for the experts to be MXFP4.
void CheckMxfp4Group(const JsonFields& group) {
  const std::string format = group.MaybeText("format").value_or(kMxfp4Format);
  CheckQuantization(format == kMxfp4Format, group, "format", fmt::format("\"{}\"", kMxfp4Format));
  CheckQuantization(!group.Has("input_activations"), group, "input_activations",
                    "null: activations that are not quantized");
  const JsonFields weights = group.Object("weights");
  CheckQuantization(weights.Positive("num_bits") == 4, weights, "num_bits", "4");
  CheckQuantization(weights.Positive("group_size") == kMxGroup, weights, "group_size", "32");
  CheckQuantization(weights.MaybeText("type").value_or("float") == "float", weights, "type",
                    "\"float\"");
  CheckQuantization(weights.MaybeBool("symmetric").value_or(true), weights, "symmetric", "true");
}

// The method comes first: only that of compressed-tensors has a format.
void CheckQuantizationMethod(const JsonFields& quantization) {
  const std::string method = quantization.MaybeText("quant_method").value_or(kQuantMethod);
  CheckQuantization(method == kQuantMethod, quantization, "quant_method",
                    fmt::format("\"{}\" with the format \"{}\"", kQuantMethod, kMxfp4Format));
  const bool is_mxfp4 = quantization.MaybeText("format").value_or("") == kMxfp4Format;
  CheckQuantization(is_mxfp4, quantization, "format", fmt::format("\"{}\"", kMxfp4Format));
}

WeightFormat ReadExpertFormat(const JsonFields& text) {
  const std::optional<JsonFields> quantization = text.MaybeObject("quantization_config");
  if (!quantization) return WeightFormat::kBF16;
  CheckQuantizationMethod(*quantization);
  const std::vector<JsonFields> groups = quantization->Object("config_groups").Objects();
  quantization->Check(!groups.empty(), "config_groups", "at least one group");
  for (const JsonFields& group : groups) CheckMxfp4Group(group);
  return WeightFormat::kMXFP4;
}

void ReadRouter(const JsonFields& text, MoeConfig* moe) {
  moe->num_groups = text.MaybePositive("num_expert_group").value_or(1);
  moe->top_groups = text.MaybePositive("topk_group").value_or(1);
  const std::string experts = std::to_string(moe->num_experts) + " experts";
  text.Check(moe->num_experts % moe->num_groups == 0, "num_expert_group",
             "a divisor of " + experts);
  const size_t group_size = moe->num_experts / moe->num_groups;
  // A group is scored by its two best experts.
  text.Check(moe->num_groups == 1 || group_size >= 2, "num_expert_group",
             "groups of two experts or more, of " + experts);
  text.Check(moe->top_groups <= moe->num_groups, "topk_group",
             "at most num_expert_group (" + std::to_string(moe->num_groups) + ")");
  text.Check(moe->top_k <= moe->top_groups * group_size, "topk_group",
             "groups that hold num_experts_per_token (" + std::to_string(moe->top_k) + ") experts");
  moe->renormalize = text.Bool("moe_renormalize");
  moe->scaling_factor = text.Number("routed_scaling_factor");
  text.Check(moe->scaling_factor > 0, "routed_scaling_factor", "a positive number");
  const std::string score = text.Text("moe_router_activation_func");
  text.Check(score == "sigmoid" || score == "softmax", "moe_router_activation_func",
             "\"sigmoid\" or \"softmax\"");
  moe->score = score == "sigmoid" ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  text.Check(text.MaybeText("topk_method").value_or("noaux_tc") == "noaux_tc", "topk_method",
             "\"noaux_tc\"");
}

MoeConfig ReadMoe(const JsonFields& text) {
  MoeConfig moe;
  moe.num_experts = text.Positive("num_experts");
  text.Check(moe.num_experts <= kMaxExperts, "num_experts",
             "at most " + std::to_string(kMaxExperts));
  moe.top_k = text.Positive("num_experts_per_token");
  text.Check(moe.top_k <= moe.num_experts, "num_experts_per_token",
             "at most num_experts (" + std::to_string(moe.num_experts) + ")");
  moe.latent_size = text.MaybePositive("routed_expert_hidden_size").value_or(0);
  moe.latent_norm = text.MaybeBool("latent_moe_use_norm").value_or(false);
  text.Check(!moe.latent_norm || moe.latent_size != 0, "latent_moe_use_norm",
             "false where routed_expert_hidden_size is absent");
  moe.inner_size = text.Positive("moe_intermediate_size");
  const size_t shared = text.MaybeNonNegative("num_shared_experts").value_or(0);
  moe.shared_inner_size = Product(text, "num_shared_experts", {shared, moe.inner_size});
  ReadRouter(text, &moe);
  return moe;
}

// The same constraint on both inputs of an expert: rows hold whole MXFP4 groups.
void CheckExpertFormat(const JsonFields& text, const ModelConfig& config) {
  if (config.moe.format != WeightFormat::kMXFP4) return;
  const char* width_key = config.moe.latent_size != 0 ? "routed_expert_hidden_size" : "hidden_size";
  text.Check(config.ExpertWidth() % kMxGroup == 0, width_key,
             "a multiple of 32, since its experts are MXFP4");
  text.Check(config.moe.inner_size % kMxGroup == 0, "moe_intermediate_size",
             "a multiple of 32, since its experts are MXFP4");
}

ActivationConfig ReadActivation(const JsonFields& text) {
  const std::string name = text.Text("hidden_act");
  text.Check(name == "situ" || name == "silu", "hidden_act", "\"situ\" or \"silu\"");
  ActivationConfig activation;
  if (name == "silu") return activation;
  const float beta = text.MaybeNumber("activation_situ_beta").value_or(0.0F);
  text.Check(beta >= 0, "activation_situ_beta", "a number that is not negative");
  activation.situ_beta = beta == 0 ? 1.0F : beta;  // the reference reads 0 and null as 1
  activation.situ_linear_beta = text.MaybeNumber("activation_situ_linear_beta").value_or(0.0F);
  text.Check(activation.situ_linear_beta >= 0, "activation_situ_linear_beta",
             "a number that is not negative");
  return activation;
}

void AddEosIds(const JsonFields& fields, ModelConfig* config) {
  for (const size_t id : fields.Ids("eos_token_id")) {
    fields.Check(id < config->vocab_size, "eos_token_id",
                 "ids below vocab_size (" + std::to_string(config->vocab_size) + ")");
    const auto token = static_cast<uint32_t>(id);
    if (std::ranges::find(config->eos_ids, token) == config->eos_ids.end()) {
      config->eos_ids.push_back(token);
    }
  }
}

void ReadBosId(const JsonFields& fields, ModelConfig* config) {
  const std::optional<size_t> id = fields.MaybeNonNegative("bos_token_id");
  if (!id) return;
  fields.Check(*id < config->vocab_size, "bos_token_id",
               "an id below vocab_size (" + std::to_string(config->vocab_size) + ")");
  fields.Check(config->bos_id.value_or(static_cast<uint32_t>(*id)) == *id, "bos_token_id",
               "the same id as at the top level");
  config->bos_id = static_cast<uint32_t>(*id);
}

// Bounds the sum of everything, so that no size computed from a configuration overflows.
void CheckTotalSize(const JsonFields& text, const ModelConfig& config) {
  uint64_t total = 0;
  const auto add = [&](uint64_t rows, uint64_t cols, uint64_t count) {
    // Four bytes an element, the most that any is stored in. rows * cols is below 2^62.
    const uint64_t bytes = CheckedMul(rows * cols, 4 * count).value_or(kMaxModelBytes);
    total = std::min(total + std::min(bytes, kMaxModelBytes), kMaxModelBytes);
  };
  for (const TensorSpec& spec : GlobalTensors(config)) add(spec.rows, spec.cols, 1);
  for (const LayerSpec& layer : config.layers) {
    for (const TensorSpec& spec : LayerTensors(config, layer)) add(spec.rows, spec.cols, 1);
    if (layer.feed_forward == FeedForwardKind::kDense) continue;
    add(config.ExpertWidth(), config.moe.inner_size, 3 * config.moe.num_experts);
  }
  text.Check(total < kMaxModelBytes, "hidden_size", "sizes of a model smaller than 2^62 bytes");
}

}  // namespace

ModelConfig ParseModelConfig(std::string_view json, const std::string& source) {
  const JsonValue root = ParseConfigJson(json, source);
  const JsonFields top(root, {source});
  ModelConfig config;
  config.architecture = ReadArchitecture(top);
  const bool nested = config.architecture == Architecture::kKimiK3;
  const JsonFields text = nested ? top.Object("text_config") : top;
  text.Check(text.Text("model_type") == "kimi_linear", "model_type", "\"kimi_linear\"");
  CheckUnsupported(top);
  CheckUnsupported(text);
  ReadSizes(text, &config);
  config.layers = ReadLayers(text);
  config.kda = ReadKda(text.Object("linear_attn_config"));
  config.mla = ReadMla(text);
  config.moe = ReadMoe(text);
  config.moe.format = ReadExpertFormat(text.Has("quantization_config") ? text : top);
  CheckExpertFormat(text, config);
  config.activation = ReadActivation(text);
  for (const JsonFields* fields : {&top, &text}) {
    ReadBosId(*fields, &config);
    AddEosIds(*fields, &config);
  }
  CheckTotalSize(text, config);
  return config;
}

ModelConfig ReadModelConfig(const std::filesystem::path& dir) {
  CheckModelDirectory(dir);
  const std::filesystem::path path = dir / kConfigFile;
  if (!FileExists(path)) {
    throw Error(ErrorCode::kBadModel, fmt::format("cannot open {}: No such file; {}", path.string(),
                                                  MissingFilesRemedy(dir)));
  }
  ModelConfig config = ParseModelConfig(ReadModelText(path, kMaxConfigBytes), path.string());
  const std::filesystem::path generation = dir / kGenerationConfigFile;
  if (FileExists(generation)) {
    const std::string source = generation.string();
    const JsonValue root = ParseConfigJson(ReadModelText(generation, kMaxConfigBytes), source);
    AddEosIds(JsonFields(root, {source}), &config);
  }
  return config;
}

}  // namespace thimble
