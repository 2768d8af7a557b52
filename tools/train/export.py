"""Writes a checkpoint as a Hugging Face folder in Kimi K3's layout and dtypes.

    export.py FOLDER OUT_DIR

The files are written beside OUT_DIR and renamed into place, so that a reader never meets
half a model.
"""
import json
import os
import shutil
import struct
import sys

import numpy as np
import torch

import mxfp4
from config import Dims, config_json
from model import KdaMixer, Model

PREFIX = "language_model."
# offset from the first special slot: (spelling, special)
SLOTS = {0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|end_of_msg|>", True), 3: ("<|open|>", False),
         4: ("<|close|>", False), 5: ("<|sep|>", False), 6: ("[start_header_id]", True),
         7: ("[end_header_id]", True), 9: ("[EOT]", True), 18: ("<|media_begin|>", True),
         19: ("<|media_content|>", True), 20: ("<|media_end|>", True), 21: ("<|media_pad|>", True),
         65: ("<osagent_mode>", True), 254: ("[UNK]", True), 255: ("[PAD]", True)}

NOTE = """# mini

A small Kimi K3 for testing: the architecture, file layout and number formats of the release, trained from
scratch by `tools/train` on the King James Bible, Moby Dick and State of the Union addresses, all in the
public domain, and on dialogues made from them. The weights were made for this project and may be used
freely. `heldout.txt` holds the Bible chapters that were never trained on; it is in the public domain too.
`figures.json` has the measurements.
"""


def bf16(t):
    return "BF16", t.detach().bfloat16().view(torch.int16).numpy().view(np.uint16)


def f32(t):
    return "F32", t.detach().float().numpy()


def kda_tensors(m, d):
    out = {f"{n}.weight": bf16(getattr(m, n))
           for n in ("q_proj", "k_proj", "v_proj", "f_a_proj", "f_b_proj", "b_proj", "g_proj", "o_proj")}
    for name, taps in zip("qkv", m.conv.chunk(3)):
        out[f"{name}_conv1d.weight"] = f32(taps)
    padded = torch.zeros(d.a_log_length)
    padded[:d.kda_heads] = m.A_log.detach()
    out.update({"A_log": f32(padded), "dt_bias": f32(m.dt_bias), "o_norm.weight": f32(m.o_norm)})
    return out


def mla_tensors(m):
    return {f"{n}.weight": bf16(getattr(m, n))
            for n in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj",
                      "g_proj", "o_proj")}


def moe_tensors(m):
    out = {f"{n}.weight": bf16(getattr(m, n))
           for n in ("gate", "routed_expert_down_proj", "routed_expert_up_proj", "routed_expert_norm")}
    out["gate.e_score_correction_bias"] = f32(m.bias)
    for n in ("gate_proj", "up_proj", "down_proj"):
        out[f"shared_experts.{n}.weight"] = bf16(getattr(m, "shared_" + n))
    for name in ("w1", "w2", "w3"):
        for e, w in enumerate(getattr(m, name).detach()):
            packed, scale = mxfp4.pack(w)
            out[f"experts.{e}.{name}.weight_packed"] = "U8", packed
            out[f"experts.{e}.{name}.weight_scale"] = "U8", scale
    return out


def layer_tensors(layer, d):
    out = {f"{n}.weight": bf16(getattr(layer, n)) for n in ("input_layernorm", "post_attention_layernorm")}
    for name, mix in (("self_attention_res", layer.attention_res), ("mlp_res", layer.mlp_res)):
        out[f"{name}_norm.weight"], out[f"{name}_proj.weight"] = bf16(mix.norm), bf16(mix.proj.view(1, -1))
    is_kda = isinstance(layer.mixer, KdaMixer)
    parts = kda_tensors(layer.mixer, d) if is_kda else mla_tensors(layer.mixer)
    out.update({"self_attn." + k: v for k, v in parts.items()})
    if layer.index:
        out.update({"block_sparse_moe." + k: v for k, v in moe_tensors(layer.ffn).items()})
    else:
        out.update({f"mlp.{n}.weight": bf16(getattr(layer.ffn, n)) for n in ("gate_proj", "up_proj", "down_proj")})
    return {f"{PREFIX}model.layers.{layer.index}.{k}": v for k, v in out.items()}


def last_tensors(model):
    return {PREFIX + k: v for k, v in {
        "model.embed_tokens.weight": bf16(model.embed), "lm_head.weight": bf16(model.head),
        "model.norm.weight": bf16(model.norm), "model.output_attn_res_norm.weight": bf16(model.output_res.norm),
        "model.output_attn_res_proj.weight": bf16(model.output_res.proj.view(1, -1))}.items()}


def write_shard(path, tensors):
    """One safetensors file, widest type first so that everything is aligned."""
    width = {"F32": 4, "BF16": 2, "U8": 1}
    names = sorted(tensors, key=lambda n: (-width[tensors[n][0]], n))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for n in names:
        dtype, data = tensors[n]
        header[n] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for n in names:
            f.write(np.ascontiguousarray(tensors[n][1]).tobytes())
    return offset


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as f:
        json.dump(value, f, indent=2, sort_keys=True)
        f.write("\n")


def tokenizer_config(d):
    entry = lambda text, special: {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                                   "single_word": False, "special": special}
    return {"added_tokens_decoder": {str(d.ranks + i): entry(*slot) for i, slot in SLOTS.items()},
            "additional_special_tokens": [], "bos_token": "[BOS]", "clean_up_tokenization_spaces": False,
            "eos_token": "[EOS]", "model_max_length": d.context, "pad_token": "[PAD]",
            "tokenizer_class": "TikTokenTokenizer", "unk_token": "[UNK]"}


def main(folder, out):
    d = Dims()
    model = Model(d)
    model.load_state_dict(torch.load(os.path.join(folder, "checkpoint.pt"))["model"])
    fresh = out.rstrip("/") + ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    os.makedirs(fresh)
    shards = [layer_tensors(layer, d) for layer in model.layers] + [last_tensors(model)]
    where, total = {}, 0
    for i, tensors in enumerate(shards, 1):
        name = f"model-{i:05d}-of-{len(shards):06d}.safetensors"
        total += write_shard(os.path.join(fresh, name), tensors)
        where.update(dict.fromkeys(tensors, name))
    write_json(fresh, "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})
    write_json(fresh, "config.json", config_json(d))
    write_json(fresh, "generation_config.json", {"eos_token_id": d.ranks + 2, "max_length": d.context})
    write_json(fresh, "tokenizer_config.json", tokenizer_config(d))
    shutil.copyfile(os.path.join(folder, "tiktoken.model"), os.path.join(fresh, "tiktoken.model"))
    shutil.copyfile(os.path.join(folder, "text", "heldout.txt"), os.path.join(fresh, "heldout.txt"))
    with open(os.path.join(fresh, "README.md"), "w") as f:
        f.write(NOTE)
    os.makedirs(out, exist_ok=True)
    for name in sorted(os.listdir(fresh)):
        os.replace(os.path.join(fresh, name), os.path.join(out, name))
    os.rmdir(fresh)
    print(f"{len(where)} tensors, {total} bytes in {len(shards)} shards")


if __name__ == "__main__":
    main(*sys.argv[1:])
