"""Kimi-Linear and Kimi K3 as llama.cpp wants them: metadata, names and shapes of tensors."""

import array
import math

from gguf import blocks
from gguf.checkpoint import BadModel
from gguf.writer import BOOL, F32, I32, STRING, U32, Tensor

SIGMOID_GATING = 2

# Suffixes of a layer's tensors. Vectors are stored as F32.
VECTORS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.routed_expert_norm.weight": "ffn_routed_norm.weight",
}
CONVOLUTIONS = {f"self_attn.{x}_conv1d.weight": f"ssm_conv1d_{x}.weight" for x in "qkv"}
MATRICES = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.f_a_proj.weight": "ssm_f_a.weight",
    "self_attn.f_b_proj.weight": "ssm_f_b.weight",
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.g_a_proj.weight": "ssm_g_a.weight",
    "self_attn.g_b_proj.weight": "ssm_g_b.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "block_sparse_moe.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "block_sparse_moe.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "block_sparse_moe.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "block_sparse_moe.routed_expert_down_proj.weight": "ffn_routed_down.weight",
    "block_sparse_moe.routed_expert_up_proj.weight": "ffn_routed_up.weight",
}
EXPERTS = {"w1": "ffn_gate_exps.weight", "w2": "ffn_down_exps.weight", "w3": "ffn_up_exps.weight"}


class Exporter:
    """Turns a checkpoint into metadata and tensors. `plain` is the type for the matrices that the
    checkpoint has in BF16: BF16, Q8_0 (where rows are whole blocks), or F32, and then MXFP4 becomes
    F32 too."""

    def __init__(self, config, checkpoint, plain):
        self.config, self.checkpoint, self.plain = config, checkpoint, plain
        self.is_k3 = "attn_res_block_size" in config
        self.arch = "kimi-k3" if self.is_k3 else "kimi-linear"
        self.layers = config["num_hidden_layers"]
        self.full_attention = {n - 1 for n in config["linear_attn_config"]["full_attn_layers"]}
        if not config.get("mla_use_nope", True):
            raise BadModel("config.json: mla_use_nope is false: llama.cpp has no rotation here")

    # ---- metadata

    def metadata(self, name):
        c, kda = self.config, self.config["linear_attn_config"]
        nope, rope, latent = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        values = [
            ("block_count", U32, self.layers),
            ("context_length", U32,
             c.get("model_max_length") or c.get("max_position_embeddings") or 4096),
            ("embedding_length", U32, c["hidden_size"]),
            ("feed_forward_length", U32, c["intermediate_size"]),
            ("vocab_size", U32, c["vocab_size"]),
            ("attention.head_count", U32, c["num_attention_heads"]),
            # The latent cache is one head for all; 0 marks a layer of KDA.
            ("attention.head_count_kv", I32,
             [int(layer in self.full_attention) for layer in range(self.layers)]),
            ("attention.layer_norm_rms_epsilon", F32, c["rms_norm_eps"]),
            ("attention.key_length", U32, latent + rope),
            ("attention.value_length", U32, latent),
            ("attention.key_length_mla", U32, nope + rope),
            ("attention.value_length_mla", U32, c["v_head_dim"]),
            ("attention.kv_lora_rank", U32, latent),
            ("rope.dimension_count", U32, rope),
            ("ssm.conv_kernel", U32, kda["short_conv_kernel_size"]),
            ("kda.head_dim", U32, kda["head_dim"]),
            ("expert_count", U32, c["num_experts"]),
            ("expert_used_count", U32, c["num_experts_per_token"]),
            ("expert_feed_forward_length", U32, c["moe_intermediate_size"]),
            ("expert_shared_count", U32, c["num_shared_experts"]),
            ("leading_dense_block_count", U32, c["first_k_dense_replace"]),
            ("expert_weights_scale", F32, c["routed_scaling_factor"]),
            ("expert_weights_norm", BOOL, c["moe_renormalize"]),
            ("expert_gating_func", U32, SIGMOID_GATING),
        ]
        if c.get("q_lora_rank"):
            values.append(("attention.q_lora_rank", U32, c["q_lora_rank"]))
        if self.is_k3:
            values += [
                ("kda.gate_lower_bound", F32, kda["gate_lower_bound"]),
                ("expert_latent_length", U32, c["routed_expert_hidden_size"]),
                ("activation.situ_beta", F32, c["activation_situ_beta"]),
                ("activation.situ_linear_beta", F32, c["activation_situ_linear_beta"]),
                ("attn_res.block_size", U32, c["attn_res_block_size"]),
            ]
        return [("general.architecture", STRING, self.arch), ("general.name", STRING, name),
                *((f"{self.arch}.{key}", kind, value) for key, kind, value in values),
                *self._vocabulary()]

    def _vocabulary(self):
        """Places for as many tokens as the model has: the engine insists on a vocabulary, and a
        comparison by ids needs none."""
        count = self.config["vocab_size"]
        tokens = [f"[{token}]" for token in range(count)]
        return [("tokenizer.ggml.model", STRING, "gpt2"),
                ("tokenizer.ggml.pre", STRING, "kimi-k2"),
                ("tokenizer.ggml.tokens", STRING, tokens),
                ("tokenizer.ggml.token_type", I32, [1] * count),
                ("tokenizer.ggml.merges", STRING, []),
                ("tokenizer.ggml.bos_token_id", U32, count - 2),
                ("tokenizer.ggml.eos_token_id", U32, count - 1),
                ("tokenizer.ggml.add_bos_token", BOOL, False)]

    # ---- tensors

    def tensors(self):
        result = [
            self._matrix(self._need("model.embed_tokens.weight"), "token_embd.weight"),
            self._vector(self._need("model.norm.weight"), "output_norm.weight"),
            self._matrix(self._need("lm_head.weight"), "output.weight"),
        ]
        if self.is_k3:
            result.append(self._residual("output_res_score.weight",
                                         self._need("model.output_attn_res_norm.weight"),
                                         self._need("model.output_attn_res_proj.weight")))
        for layer in range(self.layers):
            result += self._layer(layer)
        return result

    def _need(self, name, layer=None):
        found = (self.checkpoint.tensor(name) if layer is None
                 else self.checkpoint.layer_tensor(layer, name))
        if found is None:
            where = "" if layer is None else f" of layer {layer}"
            raise BadModel(f"the model has no tensor {name}{where}")
        return found

    def _layer(self, layer):
        prefix = f"blk.{layer}."
        result = []
        for table, make in ((VECTORS, self._vector), (CONVOLUTIONS, self._convolution),
                            (MATRICES, self._matrix)):
            for name, target in table.items():
                stored = self.checkpoint.layer_tensor(layer, name)
                if stored:
                    result.append(make(stored, prefix + target))
        result += self._kv_b(layer) if layer in self.full_attention else [self._decay(layer)]
        gate = self.checkpoint.layer_tensor(layer, "self_attn.g_proj.weight")
        if gate:
            target = "attn_gate" if layer in self.full_attention else "ssm_g"
            result.append(self._matrix(gate, f"{prefix}{target}.weight"))
        if self.is_k3:
            for name, target in (("self_attention_res", "attn_res_score"),
                                 ("mlp_res", "ffn_res_score")):
                result.append(self._residual(f"{prefix}{target}.weight",
                                             self._need(f"{name}_norm.weight", layer),
                                             self._need(f"{name}_proj.weight", layer)))
        if layer >= self.config["first_k_dense_replace"]:
            router = self._need("block_sparse_moe.gate.weight", layer)
            result.append(self._as(router, prefix + "ffn_gate_inp.weight", router.shape[::-1],
                                   "F32"))
            result += [self._experts(layer, matrix, prefix + target)
                       for matrix, target in EXPERTS.items()]
        return result

    def _type_of(self, columns):
        return "BF16" if self.plain == "Q8_0" and columns % blocks.GROUP else self.plain

    def _as(self, stored, name, sizes, type_name):
        """The elements of `stored`, in order."""
        if stored.dtype == "F32":
            type_name = "F32"
        convert = _converter(stored.dtype, type_name)
        return Tensor(name, sizes, type_name, lambda: map(convert, stored.pieces()))

    def _vector(self, stored, name):
        return self._as(stored, name, [stored.elements], "F32")

    def _convolution(self, stored, name):
        width, taps = stored.shape
        return self._as(stored, name, [taps, 1, width], "F32")

    def _matrix(self, stored, name):
        rows, columns = stored.shape
        return self._as(stored, name, [columns, rows], self._type_of(columns))

    def _decay(self, layer):
        """-exp(A_log), one a head; what the file has beyond the heads is padding."""
        heads = self.config["linear_attn_config"]["num_heads"]
        stored = self._need("self_attn.A_log", layer)

        def pieces():
            values = array.array("f", _converter(stored.dtype, "F32")(stored.read()))[:heads]
            yield array.array("f", [-math.exp(x) for x in values]).tobytes()

        return Tensor(f"blk.{layer}.ssm_a", [heads] if self.is_k3 else [1, heads], "F32", pieces)

    def _residual(self, name, norm, projection):
        """Only the product of the norm's weight and the projection matters."""

        def pieces():
            first, second = (array.array("f", _converter(x.dtype, "F32")(x.read()))
                             for x in (norm, projection))
            yield array.array("f", [a * b for a, b in zip(first, second)]).tobytes()

        return Tensor(name, [norm.elements], "F32", pieces)

    def _kv_b(self, layer):
        """kv_b_proj cut, head by head, into its rows for keys, transposed, and those for values."""
        c = self.config
        heads, latent = c["num_attention_heads"], c["kv_lora_rank"]
        keys, values = c["qk_nope_head_dim"], c["v_head_dim"]
        stored = self._need("self_attn.kv_b_proj.weight", layer)
        if stored.dtype != "BF16" or stored.shape != [heads * (keys + values), latent]:
            raise BadModel(f"layer {layer}: kv_b_proj is {stored.dtype} {stored.shape}, expected "
                           f"BF16 {[heads * (keys + values), latent]}")
        key_type, value_type = self._type_of(keys), self._type_of(latent)
        head_bytes, key_bytes = (keys + values) * latent * 2, keys * latent * 2

        def heads_of():
            data = stored.read()
            return (data[i * head_bytes:(i + 1) * head_bytes] for i in range(heads))

        def key_pieces():
            convert = _converter("BF16", key_type)
            return (convert(blocks.transposed(head[:key_bytes], keys, latent))
                    for head in heads_of())

        def value_pieces():
            convert = _converter("BF16", value_type)
            return (convert(head[key_bytes:]) for head in heads_of())

        return [Tensor(f"blk.{layer}.attn_k_b.weight", [keys, latent, heads], key_type, key_pieces),
                Tensor(f"blk.{layer}.attn_v_b.weight", [latent, values, heads], value_type,
                       value_pieces)]

    def _experts(self, layer, matrix, name):
        """The matrix w1, w2 or w3 of all experts, one after another."""
        count = self.config["num_experts"]
        first, scales = self.checkpoint.expert(layer, 0, matrix)
        if first is None:
            raise BadModel(f"the model has no {matrix} of expert 0 in layer {layer}")
        rows, columns = first.shape
        columns *= 2 if scales else 1
        if scales:
            type_name = "F32" if self.plain == "F32" else "MXFP4"
            convert = blocks.mxfp4_f32 if self.plain == "F32" else blocks.mxfp4
        else:
            type_name = self._type_of(columns)
            convert = _converter(first.dtype, type_name)

        def pieces():
            for expert in range(count):
                stored = self.checkpoint.expert(layer, expert, matrix)
                yield convert(*(part.read() for part in stored if part))

        return Tensor(name, [columns, rows, count], type_name, pieces)


def _converter(dtype, type_name):
    if dtype == type_name:
        return bytes
    if dtype == "BF16":
        return {"F32": lambda data: bytes(blocks.f32(data)), "Q8_0": blocks.q8_0}[type_name]
    raise BadModel(f"a tensor is {dtype}, expected BF16 or F32")
