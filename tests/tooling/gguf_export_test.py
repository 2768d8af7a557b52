#!/usr/bin/env python3
"""tools/gguf_export.py writes the numbers of the model, where GGUF wants them, from a download and
from a container alike; and says why where it cannot.

usage: gguf_export_test.py SOURCE_DIR THIMBLE
"""

import array
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
THIMBLE = pathlib.Path(sys.argv[2]).resolve()
del sys.argv[1:]
FIXTURES = ROOT / "tests" / "fixtures"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))

from gguf import blocks, checkpoint  # noqa: E402  pylint: disable=wrong-import-position

SCALARS = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}
BLOCK = {0: ("F32", 1, 4), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2), 39: ("MXFP4", 32, 17)}


class Reader:
    """Reads GGUF for the test, independently of the writer."""

    def __init__(self, path):
        self.data, self.at = path.read_bytes(), 0
        assert self.data[:4] == b"GGUF"
        self.at = 4
        version, tensors, entries = self.take("<IQQ")
        assert version == 3
        self.metadata = {}
        for _ in range(entries):
            key = self.string()
            self.metadata[key] = self.value(*self.take("<I"))
        places = {}
        for _ in range(tensors):
            name = self.string()
            (rank,) = self.take("<I")
            places[name] = (self.take(f"<{rank}Q"), *self.take("<IQ"))
        base = -(-self.at // 32) * 32
        self.tensors = {}
        for name, (sizes, kind, offset) in places.items():
            assert offset % 32 == 0
            type_name, group, group_bytes = BLOCK[kind]
            size = math.prod(sizes) // group * group_bytes
            assert base + offset + size <= len(self.data)
            self.tensors[name] = (sizes, type_name, self.data[base + offset:base + offset + size])

    def take(self, form):
        result = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return result

    def string(self):
        (length,) = self.take("<Q")
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def value(self, kind):
        if kind == 9:
            kind, count = self.take("<IQ")
            return [self.value(kind) for _ in range(count)]
        return self.string() if kind == 8 else self.take(SCALARS[kind])[0]


def export(model, target, *options):
    return subprocess.run(
        [sys.executable, "-B", ROOT / "tools" / "gguf_export.py", model, target, *options],
        capture_output=True,
        text=True,
        check=False,
    )


def floats(data):
    return list(array.array("f", bytes(data)))


def mxfp4_of_gguf(data):
    """Numbers of blocks as GGUF defines them."""
    result = []
    for begin in range(0, len(data), 17):
        scale, codes = data[begin], data[begin + 1:begin + 17]
        numbers = [c & 15 for c in codes] + [c >> 4 for c in codes]
        result += [math.ldexp(blocks.E2M1[n], scale - 127) for n in numbers]
    return result


class GgufExportTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)

    def exported(self, model, *options):
        target = self.folder / "model.gguf"
        result = export(model, target, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return Reader(target)

    def packed(self, model, *options):
        target = self.folder / "packed"
        subprocess.run(
            [THIMBLE, "pack", "-m", model, "-o", target, *options], check=True, capture_output=True
        )
        return target

    def test_a_container_gives_the_tensors_of_the_download(self):
        for name in ("kimi-linear-small", "k3-small"):
            with self.subTest(name):
                download = self.exported(FIXTURES / name)
                container = self.exported(self.packed(FIXTURES / name, "--raw"))
                self.assertEqual(download.tensors, container.tensors)
                shutil.rmtree(self.folder / "packed")

    def test_bf16_is_the_same_bytes(self):
        _, source = checkpoint.open_checkpoint(FIXTURES / "kimi-linear-small")
        found = self.exported(FIXTURES / "kimi-linear-small")
        for name, target in (
            ("self_attn.f_a_proj.weight", "blk.1.ssm_f_a.weight"),
            ("block_sparse_moe.shared_experts.up_proj.weight", "blk.1.ffn_up_shexp.weight"),
        ):
            stored = source.layer_tensor(1, name)
            sizes, type_name, data = found.tensors[target]
            self.assertEqual((sizes, type_name), (tuple(stored.shape[::-1]), "BF16"))
            self.assertEqual(data, stored.read())
        sizes, type_name, data = found.tensors["blk.1.ffn_gate_exps.weight"]
        self.assertEqual((sizes, type_name), ((96, 32, 16), "BF16"))
        last = source.expert(1, 15, "w1")[0].read()
        self.assertEqual(data[-len(last):], last)

    def test_mxfp4_is_the_same_numbers(self):
        model = FIXTURES / "k3-small"
        coded = self.exported(model).tensors["blk.2.ffn_down_exps.weight"]
        plain = self.exported(model, "--trunk", "f32").tensors["blk.2.ffn_down_exps.weight"]
        self.assertEqual((coded[0], coded[1], plain[1]), ((32, 64, 24), "MXFP4", "F32"))
        self.assertEqual(mxfp4_of_gguf(coded[2]), floats(plain[2]))

    def test_f32_of_mxfp4_is_the_reference_s(self):
        """Against the matrix that the reference code dequantised."""
        model = FIXTURES / "k3-small"
        data = (model / "expected.safetensors").read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + length])
        (key,) = [name for name in header if name.startswith("mxfp4_example.")]
        begin, end = header[key]["data_offsets"]
        expected = floats(data[8 + length + begin:8 + length + end])
        parts = key.split(".")
        layer, expert = (int(parts[parts.index(x) + 1]) for x in ("layers", "experts"))
        matrix = next(part for part in parts if part in ("w1", "w2", "w3"))
        _, source = checkpoint.open_checkpoint(model)
        codes, scales = source.expert(layer, expert, matrix)
        self.assertEqual(floats(blocks.mxfp4_f32(codes.read(), scales.read())), expected)

    def test_q8_0_is_within_half_a_step(self):
        values = [math.sin(i) * 2.0 ** (i // 32 - 3) for i in range(256)] + [0.0] * 32
        bf16 = b"".join(struct.pack("<f", x)[2:] for x in values)
        exact = floats(blocks.f32(bf16))
        coded = bytes(blocks.q8_0(bf16))
        self.assertEqual(len(coded), 9 * 34)
        for group in range(9):
            scale, *steps = struct.unpack_from("<e32b", coded, 34 * group)
            numbers = exact[32 * group:32 * group + 32]
            most = max(map(abs, numbers))
            self.assertAlmostEqual(scale, most / 127, delta=most / 127 / 1024)
            for number, step in zip(numbers, steps):
                self.assertLessEqual(abs(number - scale * step), most / 127 * 0.57)

    def test_keys_are_transposed_and_values_are_not(self):
        config, source = checkpoint.open_checkpoint(FIXTURES / "kimi-linear-small")
        heads, latent = config["num_attention_heads"], config["kv_lora_rank"]
        keys, values = config["qk_nope_head_dim"], config["v_head_dim"]
        joint = array.array("H", source.layer_tensor(3, "self_attn.kv_b_proj.weight").read())
        found = self.exported(FIXTURES / "kimi-linear-small").tensors
        sizes, _, data = found["blk.3.attn_k_b.weight"]
        self.assertEqual(sizes, (keys, latent, heads))
        key_of = array.array("H", data)
        sizes, _, data = found["blk.3.attn_v_b.weight"]
        self.assertEqual(sizes, (latent, values, heads))
        value_of = array.array("H", data)
        for head in range(heads):
            first = head * (keys + values) * latent
            for row in range(keys):
                self.assertEqual(key_of[head * keys * latent + 5 * keys + row],
                                 joint[first + row * latent + 5])
            begin = first + keys * latent
            self.assertEqual(value_of[head * values * latent:(head + 1) * values * latent],
                             joint[begin:begin + values * latent])

    def test_decay_and_layers_without_attention(self):
        config, source = checkpoint.open_checkpoint(FIXTURES / "k3-small")
        found = self.exported(FIXTURES / "k3-small")
        logs = floats(source.layer_tensor(0, "self_attn.A_log").read())[:4]
        sizes, type_name, data = found.tensors["blk.0.ssm_a"]
        self.assertEqual((sizes, type_name), ((4,), "F32"))
        for log, rate in zip(logs, floats(data)):
            self.assertAlmostEqual(rate, -math.exp(log), delta=1e-6 * math.exp(log))
        self.assertEqual([i + 1 for i, n in
                          enumerate(found.metadata["kimi-k3.attention.head_count_kv"]) if n],
                         config["linear_attn_config"]["full_attn_layers"])
        self.assertEqual(len(found.metadata["tokenizer.ggml.tokens"]), config["vocab_size"])

    def test_a_coded_container_is_refused(self):
        result = export(self.packed(FIXTURES / "k3-small"), self.folder / "model.gguf")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--raw", result.stderr)
        self.assertFalse((self.folder / "model.gguf").exists())

    def test_a_missing_model_is_named(self):
        result = export(self.folder / "nowhere", self.folder / "model.gguf")
        self.assertEqual(result.returncode, 1)
        self.assertIn("nowhere/config.json", result.stderr)


if __name__ == "__main__":
    unittest.main()
