"""Reads an exported folder back into the model, dequantised to float32."""
import json
import os
import struct

import numpy as np
import torch

import mxfp4
from config import Dims
from model import KdaMixer, Model

PREFIX = "language_model."
_NUMPY = {"F32": np.float32, "BF16": np.uint16, "U8": np.uint8}


def read_shard(path):
    """-> {name: array}, bfloat16 widened to float32."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        a = np.frombuffer(data[begin:end], _NUMPY[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            a = (a.astype(np.uint32) << 16).view(np.float32)
        out[name] = a
    return out


def read_folder(folder):
    with open(os.path.join(folder, "model.safetensors.index.json")) as f:
        shards = sorted(set(json.load(f)["weight_map"].values()))
    tensors = {}
    for shard in shards:
        tensors.update(read_shard(os.path.join(folder, shard)))
    return {name[len(PREFIX):]: t for name, t in tensors.items()}


class _Filler:
    """Copies tensors by name and remembers which were used."""

    def __init__(self, tensors):
        self.tensors, self.used = tensors, set()

    def take(self, name):
        self.used.add(name)
        return torch.from_numpy(np.array(self.tensors[name]))

    def expert(self, name):
        self.used |= {name + ".weight_packed", name + ".weight_scale"}
        return torch.from_numpy(mxfp4.unpack(self.tensors[name + ".weight_packed"],
                                             self.tensors[name + ".weight_scale"]))

    def fill(self, module, base, names):
        for n in names:
            getattr(module, n).copy_(self.take(f"{base}{n}.weight"))


def _mixer(f, base, m, d):
    if not isinstance(m, KdaMixer):
        f.fill(m, base, ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm",
                         "kv_b_proj", "g_proj", "o_proj"))
        return
    f.fill(m, base, ("q_proj", "k_proj", "v_proj", "f_a_proj", "f_b_proj", "b_proj", "g_proj", "o_proj", "o_norm"))
    m.conv.copy_(torch.cat([f.take(f"{base}{n}_conv1d.weight") for n in "qkv"]))
    m.A_log.copy_(f.take(base + "A_log")[:d.kda_heads])
    m.dt_bias.copy_(f.take(base + "dt_bias"))


def _moe(f, base, m, d):
    f.fill(m, base, ("gate", "routed_expert_down_proj", "routed_expert_up_proj", "routed_expert_norm"))
    m.bias.copy_(f.take(base + "gate.e_score_correction_bias"))
    for n in ("gate_proj", "up_proj", "down_proj"):
        getattr(m, "shared_" + n).copy_(f.take(f"{base}shared_experts.{n}.weight"))
    for n in ("w1", "w2", "w3"):
        getattr(m, n).copy_(torch.stack([f.expert(f"{base}experts.{e}.{n}") for e in range(d.experts)]))


@torch.no_grad()
def load(folder):
    d = Dims()
    model, f = Model(d), _Filler(read_folder(folder))
    model.embed.copy_(f.take("model.embed_tokens.weight"))
    model.head.copy_(f.take("lm_head.weight"))
    mixes = [("model.output_attn_res", model.output_res)]
    f.fill(model, "model.", ("norm",))
    for layer in model.layers:
        base = f"model.layers.{layer.index}."
        f.fill(layer, base, ("input_layernorm", "post_attention_layernorm"))
        mixes += [(base + "self_attention_res", layer.attention_res), (base + "mlp_res", layer.mlp_res)]
        _mixer(f, base + "self_attn.", layer.mixer, d)
        if layer.index:
            _moe(f, base + "block_sparse_moe.", layer.ffn, d)
        else:
            f.fill(layer.ffn, base + "mlp.", ("gate_proj", "up_proj", "down_proj"))
    for base, mix in mixes:
        mix.norm.copy_(f.take(base + "_norm.weight"))
        mix.proj.copy_(f.take(base + "_proj.weight").view(-1))
    left = set(f.tensors) - f.used
    assert not left, left
    return model
