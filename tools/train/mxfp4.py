"""The MXFP4 grid: groups of 32 inputs share a power of two, elements are E2M1.

Training rounds with the kernel of the same definition; this is the exporter's.
"""
import numpy as np
import torch

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GROUP = 32


def _exponents(amax):
    """Smallest e with amax / 2^e <= 6, the largest magnitude, exactly: amax = m * 2^x with
    m in [0.5, 1), and 6 = 0.75 * 2^3."""
    mantissa, exponent = torch.frexp(amax)
    return exponent - 3 + (mantissa > 0.75).to(exponent.dtype)


def _snap(mag):
    """Round magnitudes in [0, 6] to the grid, ties to the even code: the grid is the
    integers below 2 in halves, to 4 in ones, to 6 in twos, and torch.round ties to even."""
    step = torch.where(mag < 2, 0.5, torch.where(mag < 4, 1.0, 2.0)).to(mag.dtype)
    return torch.round(mag / step) * step


def quantize(w):
    """float32 [..., K] -> (values on the grid, exponents [..., K / 32])."""
    groups = w.reshape(*w.shape[:-1], -1, GROUP)
    e = _exponents(groups.abs().amax(-1))
    scale = torch.ldexp(torch.ones_like(groups[..., 0]), e).unsqueeze(-1)
    q = _snap((groups / scale).abs()) * scale
    return torch.copysign(q, groups).reshape(w.shape), e


def pack(w):
    """float32 [N, K] -> (uint8 [N, K / 2] low nibble first, uint8 scale bytes [N, K / 32])."""
    q, e = quantize(w)
    scale = torch.ldexp(torch.ones_like(e, dtype=torch.float32), e)
    unit = (q.reshape(*e.shape, GROUP) / scale.unsqueeze(-1)).reshape(w.shape).numpy()
    code = np.searchsorted(np.array(MAGNITUDES), np.abs(unit)).astype(np.uint8)
    code |= np.signbit(unit).astype(np.uint8) << 3
    zero = (q.reshape(*e.shape, GROUP) == 0).all(-1).numpy()
    return code[:, 0::2] | (code[:, 1::2] << 4), np.where(zero, 0, e.numpy() + 127).astype(np.uint8)


def unpack(packed, scale):
    """The inverse of `pack`, float32."""
    table = np.array(MAGNITUDES + tuple(-m for m in MAGNITUDES), np.float32)
    w = np.empty((packed.shape[0], packed.shape[1] * 2), np.float32)
    w[:, 0::2], w[:, 1::2] = table[packed & 15], table[packed >> 4]
    factor = np.ldexp(np.float32(1), scale.astype(np.int32) - 127)
    return (w.reshape(*scale.shape, GROUP) * factor[..., None]).reshape(w.shape)
