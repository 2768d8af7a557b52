"""Writes GGUF files, version 3: header, metadata, places of tensors, data."""

import os
import struct

ALIGNMENT = 32
# Name -> number of the type, elements of a block, bytes of a block.
TYPES = {"F32": (0, 1, 4), "Q8_0": (8, 32, 34), "BF16": (30, 1, 2), "MXFP4": (39, 32, 17)}
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
FORMATS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}


class Tensor:
    """A tensor to be written: sizes with the contiguous one first, a type, and a function whose
    result yields the bytes, piece by piece."""

    def __init__(self, name, sizes, type_name, pieces):
        _, group, group_bytes = TYPES[type_name]
        self.name, self.sizes, self.type_name, self.pieces = name, sizes, type_name, pieces
        elements = 1
        for n in sizes:
            elements *= n
        assert sizes[0] % group == 0, name
        self.bytes = elements // group * group_bytes


def aligned(offset):
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind, value):
    return _string(value) if kind == STRING else struct.pack(FORMATS[kind], value)


def _entry(key, kind, value):
    head = _string(key)
    if isinstance(value, list):
        head += struct.pack("<IIQ", ARRAY, kind, len(value))
        return head + b"".join(_value(kind, item) for item in value)
    return head + struct.pack("<I", kind) + _value(kind, value)


def write(path, metadata, tensors):
    """Writes `metadata`, a list of (key, type, value or list of values), and the tensors. The file
    has its name only when it is whole. Holds a piece of a tensor at a time."""
    parts = [b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [_entry(*entry) for entry in metadata]
    offset = 0
    for tensor in tensors:
        parts.append(_string(tensor.name))
        parts.append(struct.pack(f"<I{len(tensor.sizes)}Q", len(tensor.sizes), *tensor.sizes))
        parts.append(struct.pack("<IQ", TYPES[tensor.type_name][0], offset))
        offset = aligned(offset + tensor.bytes)
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        file.write(b"".join(parts))
        for tensor in tensors:
            file.write(bytes(aligned(file.tell()) - file.tell()))
            begin = file.tell()
            for piece in tensor.pieces():
                file.write(piece)
            if file.tell() - begin != tensor.bytes:
                raise ValueError(f"{tensor.name}: expected {tensor.bytes} bytes, wrote "
                                 f"{file.tell() - begin}")
        file.write(bytes(aligned(file.tell()) - file.tell()))
    os.replace(partial, path)
