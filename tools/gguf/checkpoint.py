"""Reads checkpoints: directories as downloaded (safetensors), and Thimble's containers."""

import json
import pathlib
import struct

PIECE = 4 << 20  # bytes read at a time; a multiple of every block of elements
SIZES = {"BF16": 2, "F32": 4, "U8": 1, "F8_E8M0": 1}


class BadModel(Exception):
    """A checkpoint that cannot be exported: file, expected, found, remedy."""


class Stored:
    """A tensor where it lies: `size` bytes of `file` at `offset`, row-major."""

    def __init__(self, file, offset, dtype, shape):
        if dtype not in SIZES:
            raise BadModel(f"{file}: expected a tensor of {', '.join(SIZES)}, found {dtype}")
        self.file, self.offset, self.dtype = file, offset, dtype
        self.shape = [n for n in shape if n != 1] or [1]
        self.elements = 1
        for n in shape:
            self.elements *= n
        self.size = self.elements * SIZES[dtype]

    def pieces(self):
        with open(self.file, "rb") as file:
            file.seek(self.offset)
            left = self.size
            while left:
                data = file.read(min(PIECE, left))
                if not data:
                    raise BadModel(f"{self.file}: expected {left} more bytes, found its end: "
                                   "download or pack the model again")
                left -= len(data)
                yield data

    def read(self):
        return b"".join(self.pieces())


class Snapshot:
    """A directory as downloaded: config.json, shards and their index."""

    def __init__(self, directory):
        self.directory = directory
        index = json.loads((directory / "model.safetensors.index.json").read_text())
        self.shard_of = index["weight_map"]
        self.headers = {}
        prefix = "language_model."
        self.prefix = prefix if any(n.startswith(prefix) for n in self.shard_of) else ""

    def _header(self, shard):
        if shard not in self.headers:
            with open(self.directory / shard, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                self.headers[shard] = 8 + length, json.loads(file.read(length))
        return self.headers[shard]

    def _find(self, name):
        name = self.prefix + name
        if name not in self.shard_of:
            return None
        shard = self.shard_of[name]
        data, header = self._header(shard)
        entry = header[name]
        begin, _ = entry["data_offsets"]
        return Stored(self.directory / shard, data + begin, entry["dtype"], entry["shape"])

    def tensor(self, name):
        return self._find(name)

    def layer_tensor(self, layer, name):
        return self._find(f"model.layers.{layer}.{name}")

    def expert(self, layer, expert, matrix):
        """Elements or codes of matrix w1, w2 or w3 of an expert, and its scales or None."""
        prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}."
        plain = self._find(prefix + "weight")
        if plain:
            return plain, None
        return self._find(prefix + "weight_packed"), self._find(prefix + "weight_scale")


class Container:
    """A container of docs/CONTAINER.md of which nothing is coded."""

    RECORD = struct.Struct("<QQQ")

    def __init__(self, directory, config):
        self.directory = directory
        self.manifest = json.loads((directory / "manifest.json").read_text())
        if self.manifest.get("version") != 3:
            raise BadModel(f"{directory}/manifest.json: expected version 3, found "
                           f"{self.manifest.get('version')}: pack the model again")
        if self.manifest.get("coded_scales"):
            raise BadModel(f"{directory}: the scales of its experts are coded: expected a container "
                           "made with `pack --raw` or `synth --raw`")
        self.config = config
        self.records = (directory / "extents.bin").read_bytes()
        if self.records[:8] != b"THIMBLEX":
            raise BadModel(f"{directory}/extents.bin: expected THIMBLEX at its start")
        self.globals = {t["name"]: t for t in self.manifest["globals"]}
        self.layers = [{t["name"]: (layer["extent"] + i, t)
                        for i, t in enumerate(layer["tensors"])}
                       for layer in self.manifest["layers"]]

    def _extent(self, index):
        place, size, _ = self.RECORD.unpack_from(self.records, 32 + index * self.RECORD.size)
        file = self.manifest["files"][place >> 48]
        folder = self.manifest["directories"][file["directory"]]
        return self.directory / folder / file["name"], place & ((1 << 48) - 1), size

    def _stored(self, extent, entry):
        if "group_rows" in entry:
            raise BadModel(f"{self.directory}: {entry['name']} is coded: expected a container "
                           "made with `pack --raw` or `synth --raw`")
        file, offset, _ = self._extent(extent)
        return Stored(file, offset, entry["dtype"], entry["shape"])

    def tensor(self, name):
        entry = self.globals.get(name)
        return entry and self._stored(entry["extent"], entry)

    def layer_tensor(self, layer, name):
        found = self.layers[layer].get(name)
        return found and self._stored(*found)

    def expert(self, layer, expert, matrix):
        """As of Snapshot. An expert is gate (w1), down (w2), up (w3): their codes, their scales."""
        experts = self.manifest["layers"][layer]["experts"]
        file, offset, size = self._extent(experts["extent"] + expert % experts["distinct"])
        inner = self.config["moe_intermediate_size"]
        width = self.config.get("routed_expert_hidden_size") or self.config["hidden_size"]
        elements = inner * width
        shape = [width, inner] if matrix == "w2" else [inner, width]
        matrices = ("w1", "w2", "w3")
        place = matrices.index(matrix)
        if size == len(matrices) * elements * 2:
            return Stored(file, offset + place * elements * 2, "BF16", shape), None
        scales = offset + len(matrices) * elements // 2 + place * elements // 32
        return (Stored(file, offset + place * elements // 2, "U8", [shape[0], shape[1] // 2]),
                Stored(file, scales, "U8", [shape[0], shape[1] // 32]))


def open_checkpoint(directory):
    """The text model's configuration, and where its tensors lie."""
    directory = pathlib.Path(directory)
    try:
        config = json.loads((directory / "config.json").read_text())
        config = config.get("text_config", config)
        is_container = (directory / "manifest.json").exists()
        return config, Container(directory, config) if is_container else Snapshot(directory)
    except FileNotFoundError as error:
        raise BadModel(f"{error.filename}: expected a model directory with this file") from error
