"""Pieces shared by the model's layers."""
import torch
import torch.nn as nn

import kernels


def linear(n_in, n_out, gain=1.0):
    """A weight matrix [out, in], rows of unit expected norm times gain."""
    return nn.Parameter(torch.randn(n_out, n_in) * gain * n_in ** -0.5)


class _Matmul(torch.autograd.Function):
    """y = x w^T with bfloat16 operands, which recent CPUs multiply faster."""

    @staticmethod
    def forward(ctx, x, w):
        x2, w2 = x.flatten(0, -2).bfloat16(), w.bfloat16()
        ctx.save_for_backward(x2, w2)
        return (x2 @ w2.t()).float().view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        g = grad.flatten(0, -2).bfloat16()
        return (g @ w).float().view(*grad.shape[:-1], -1), (g.t() @ x).float()


def matmul(x, w):
    """x w^T: in bfloat16 when training, in float32 when evaluating."""
    return _Matmul.apply(x, w) if torch.is_grad_enabled() else x @ w.t()


class _Rms(torch.autograd.Function):
    """w * x / sqrt(mean(x^2) + eps), with the short hand-written backward."""

    @staticmethod
    def forward(ctx, x, w, eps):
        inv = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        y = x * inv
        ctx.save_for_backward(y, inv, w)
        return y * w

    @staticmethod
    def backward(ctx, grad):
        y, inv, w = ctx.saved_tensors
        dw = (grad * y).flatten(0, -2).sum(0)
        gy = grad * w
        dx = (gy - y * (gy * y).mean(-1, keepdim=True)) * inv
        return dx, dw, None


rms = _Rms.apply


situ = kernels.Situ.apply


class _RoundBf16(torch.autograd.Function):
    """Rounds to bfloat16; the gradient passes straight through."""

    @staticmethod
    def forward(ctx, w):
        return w.bfloat16().float()

    @staticmethod
    def backward(ctx, grad):
        return grad


round_bf16 = _RoundBf16.apply
snap_mxfp4 = kernels.Mxfp4Snap.apply
