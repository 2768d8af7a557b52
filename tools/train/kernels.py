"""Compiles kernels.cpp and wraps it as autograd functions."""
import ctypes
import os
import subprocess
import tempfile

import torch

_FLAGS = "-std=c++17 -O3 -march=native -ffast-math -mprefer-vector-width=512 -shared -fPIC -I/usr/include/eigen3"


def _load():
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.cpp")
    library = os.path.join(tempfile.gettempdir(), f"mini-kernels-{os.getuid()}-{int(os.stat(source).st_mtime)}.so")
    if not os.path.exists(library):
        partial = f"{library}.{os.getpid()}"
        subprocess.run(["g++", *_FLAGS.split(), source, "-o", partial], check=True)
        os.replace(partial, library)
    return ctypes.CDLL(library)


_LIB = _load()


def _call(name, *args):
    """Passes contiguous float32 tensors by address and integers by value."""
    for a in args:
        assert isinstance(a, int) or a.dtype == torch.float32 and a.is_contiguous(), name
    _LIB[name](*(ctypes.c_int64(a) if isinstance(a, int) else ctypes.c_void_p(a.data_ptr()) for a in args))


def _at(x, offset):
    """A flat view from an offset, to point into a row of q, k and v side by side."""
    return x.reshape(-1)[offset:]


class Kda(torch.autograd.Function):
    """(qkv [B, T, 3P] after the convolution, g [B, T, P], beta [B, T, h]) -> o [B, T, P]."""

    @staticmethod
    def forward(ctx, qkv, g, beta):
        b, t, p = g.shape
        heads = beta.shape[2]
        g, beta = g.contiguous(), beta.contiguous()
        o, u = torch.empty_like(g), torch.empty_like(g)
        states = g.new_empty(b * heads, t // 16, p // heads, p // heads)
        _call("kda_forward", b, t, heads, 3 * p, qkv, _at(qkv, p), _at(qkv, 2 * p), g, beta, o, u, states)
        ctx.save_for_backward(qkv, g, beta, u, states)
        return o

    @staticmethod
    def backward(ctx, grad):
        qkv, g, beta, u, states = ctx.saved_tensors
        b, t, p = g.shape
        dqkv, dg, dbeta = torch.empty_like(qkv), torch.empty_like(g), torch.empty_like(beta)
        _call("kda_backward", b, t, beta.shape[2], 3 * p, qkv, _at(qkv, p), _at(qkv, 2 * p), g, beta, u, states,
              grad.contiguous(), dqkv, _at(dqkv, p), _at(dqkv, 2 * p), dg, dbeta)
        return dqkv, dg, dbeta


class Conv(torch.autograd.Function):
    """Raw [q | k | v] rows [B, T, 3P] and taps [3P, 1, 4] -> convolved, SiLU, q and k normalised."""

    @staticmethod
    def forward(ctx, x, taps):
        x, w = x.contiguous(), taps.squeeze(1).t().contiguous()
        y = torch.empty_like(x)
        _call("conv_forward", *x.shape, x, w, y)
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
        _call("conv_backward", *x.shape, x, w, grad.contiguous(), dx, dw)
        return dx, dw.t().unsqueeze(1)


class Situ(torch.autograd.Function):
    """Kimi K3's SiTU-GLU on rows [gate | up]: both branches saturate (4 and 25)."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        _call("situ_forward", y.numel() // y.shape[-1], y.shape[-1], x, y)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        dx = torch.empty_like(x)
        _call("situ_backward", grad.numel() // grad.shape[-1], grad.shape[-1], x, grad.contiguous(), dx)
        return dx


class Mxfp4Snap(torch.autograd.Function):
    """Rounds to the MXFP4 grid along the last dimension; the gradient passes straight through."""

    @staticmethod
    def forward(ctx, w):
        out = torch.empty_like(w)
        _call("mxfp4_snap", w.numel() // 32, w, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad
