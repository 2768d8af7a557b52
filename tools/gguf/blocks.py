"""Elements as GGUF stores them. Bytes are moved by slices and by integers of any length, which
Python does at hundreds of megabytes a second without other packages."""

import array
import math
import struct

GROUP = 32  # elements of a block of Q8_0 and MXFP4


def f32(data):
    """BF16 as F32: the same numbers."""
    result = bytearray(2 * len(data))
    result[2::4] = data[0::2]
    result[3::4] = data[1::2]
    return result


def q8_0(data):
    """BF16 as blocks of an F16 scale and 32 signed bytes: rounded, the largest becomes 127."""
    values = array.array("f", bytes(f32(data)))
    result = bytearray()
    for begin in range(0, len(values), GROUP):
        group = values[begin:begin + GROUP]
        scale = max(max(group), -min(group)) / 127
        inverse = 1 / scale if scale else 0
        result += struct.pack("<e", scale)
        result += array.array("b", [round(x * inverse) for x in group]).tobytes()
    return result


def mxfp4(codes, scales):
    """Groups of MXFP4 as blocks of 17 bytes: the E8M0 scale, then element i in the low half of byte
    i and element i + 16 in the high half. In checkpoints a byte holds elements 2 i and 2 i + 1."""
    count = len(scales)
    low = int.from_bytes(b"\x0f" * count, "little")
    result = bytearray(17 * count)
    result[0::17] = scales
    for i in range(8):
        first = int.from_bytes(codes[i::16], "little")  # elements 2 i, 2 i + 1 of every group
        second = int.from_bytes(codes[i + 8::16], "little")  # elements 2 i + 16, 2 i + 17
        even = (first & low) | ((second & low) << 4)
        odd = ((first >> 4) & low) | (second & (low << 4))
        result[1 + 2 * i::17] = even.to_bytes(count, "little")
        result[2 + 2 * i::17] = odd.to_bytes(count, "little")
    return result


MAGNITUDES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # of the codes 0 to 7 of E2M1; 8 to 15: negative
E2M1 = MAGNITUDES + tuple(-x for x in MAGNITUDES)


def mxfp4_f32(codes, scales):
    """Groups of MXFP4, as checkpoints have them, as F32: the same numbers."""
    result = array.array("f")
    for group, scale in enumerate(scales):
        for byte in codes[16 * group:16 * group + 16]:
            result.append(math.ldexp(E2M1[byte & 15], scale - 127))
            result.append(math.ldexp(E2M1[byte >> 4], scale - 127))
    return result.tobytes()


def transposed(data, rows, columns):
    """A matrix of 16-bit elements, its columns as rows."""
    elements = array.array("H", data)
    result = array.array("H", bytes(len(data)))
    for row in range(rows):
        result[row::rows] = elements[row * columns:(row + 1) * columns]
    return result.tobytes()
