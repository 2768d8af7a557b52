"""Dimensions of the small model and the config.json that describes them, K3's shape."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Dims:
    ranks: int = 3840
    slots: int = 256
    hidden: int = 192
    layers: int = 8
    kda_heads: int = 4
    kda_dim: int = 64
    a_log_length: int = 8            # heads padded, as K3 pads 96 to 128
    conv: int = 4
    gate_bound: float = -5.0
    mla_heads: int = 6
    qk_nope: int = 32
    qk_extra: int = 16
    v_dim: int = 32
    q_lora: int = 96
    kv_lora: int = 64
    dense_inner: int = 576
    experts: int = 32
    top_k: int = 4
    shared: int = 2
    latent: int = 96
    inner: int = 128
    block: int = 3
    eps: float = 1e-5
    context: int = 2048

    @property
    def vocab(self):
        return self.ranks + self.slots

    @property
    def kda_width(self):
        return self.kda_heads * self.kda_dim

    def is_mla(self, layer):
        """K3's pattern: every fourth layer, and the last."""
        return layer % 4 == 3 or layer == self.layers - 1


_QUANTIZATION = {
    "config_groups": {"group_0": {
        "format": "mxfp4-pack-quantized", "input_activations": None, "output_activations": None,
        "targets": ["Linear"],
        "weights": {"actorder": None, "block_structure": None, "dynamic": False, "group_size": 32, "num_bits": 4,
                    "observer": "minmax", "observer_kwargs": {}, "scale_dtype": "torch.uint8",
                    "strategy": "group", "symmetric": True, "type": "float", "zp_dtype": None}}},
    "format": "mxfp4-pack-quantized", "global_compression_ratio": None,
    "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
               "re:.*lm_head.*", "re:.*vision_tower.*", "re:.*mm_projector.*"],
    "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
}

# Keys that say nothing about this model; the release writes them, so readers must meet them here too.
_BOILERPLATE = {
    "_name_or_path": "", "add_cross_attention": False, "bad_words_ids": None, "begin_suppress_tokens": None,
    "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "decoder_start_token_id": None,
    "diversity_penalty": 0.0, "do_sample": False, "early_stopping": False, "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None, "finetuning_task": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_range": 0.02,
    "is_decoder": False, "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "length_penalty": 1.0, "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "num_beams": 1, "num_return_sequences": 1, "output_attentions": False, "output_hidden_states": False,
    "output_scores": False, "prefix": None, "problem_type": None, "pruned_heads": {},
    "remove_invalid_values": False, "repetition_penalty": 1.0, "return_dict": True,
    "return_dict_in_generate": False, "sep_token_id": None, "suppress_tokens": None, "task_specific_params": None,
    "temperature": 1.0, "tf_legacy_loss": False, "tie_encoder_decoder": False, "tokenizer_class": None,
    "top_k": 50, "top_p": 1.0, "torchscript": False, "transformers_version": "4.56.2", "typical_p": 1.0,
    "use_bfloat16": False, "use_cache": True,
}


def config_json(d):
    """The dictionary written to config.json."""
    ids = {"bos_token_id": d.ranks, "eos_token_id": d.ranks + 2, "pad_token_id": d.vocab - 1}
    mla = [i + 1 for i in range(d.layers) if d.is_mla(i)]
    text = dict(_BOILERPLATE, **ids, **{
        "architectures": ["KimiLinearForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiLinearConfig",
                     "AutoModel": "modeling_kimi_linear.KimiLinearModel",
                     "AutoModelForCausalLM": "modeling_kimi_linear.KimiLinearForCausalLM"},
        "model_type": "kimi_linear", "dtype": "bfloat16", "vocab_size": d.vocab, "hidden_size": d.hidden,
        "num_hidden_layers": d.layers, "intermediate_size": d.dense_inner, "hidden_act": "situ",
        "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": d.eps,
        "attn_res_block_size": d.block, "max_position_embeddings": d.context, "tie_word_embeddings": False,
        "linear_attn_config": {"full_attn_layers": mla,
                               "kda_layers": [i for i in range(1, d.layers + 1) if i not in mla],
                               "gate_lower_bound": d.gate_bound, "head_dim": d.kda_dim, "num_heads": d.kda_heads,
                               "short_conv_kernel_size": d.conv, "use_full_rank_gate": True},
        "num_attention_heads": d.mla_heads, "num_key_value_heads": d.mla_heads, "q_lora_rank": d.q_lora,
        "kv_lora_rank": d.kv_lora, "qk_nope_head_dim": d.qk_nope, "qk_rope_head_dim": d.qk_extra,
        "v_head_dim": d.v_dim, "mla_use_nope": True, "mla_use_output_gate": True,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": d.experts,
        "num_experts_per_token": d.top_k, "num_shared_experts": d.shared, "moe_intermediate_size": d.inner,
        "routed_expert_hidden_size": d.latent, "latent_moe_use_norm": True, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
        "topk_method": "noaux_tc", "use_grouped_topk": True, "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 0, "quantization_config": _QUANTIZATION,
    })
    return dict(ids, **{
        "architectures": ["KimiK3ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiK3Config",
                     "AutoModel": "modeling_kimi_k3.KimiK3ForConditionalGeneration",
                     "AutoModelForCausalLM": "modeling_kimi_k3.KimiK3ForConditionalGeneration"},
        "dtype": "bfloat16", "ignore_index": -100, "image_placeholder": "<|kimi_image_placeholder|>",
        "media_placeholder_token_id": d.ranks + 21, "model_type": "kimi_k3", "text_config": text,
        "tie_word_embeddings": False,
    })
