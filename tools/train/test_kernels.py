"""The kernels against plain PyTorch in float64, values and gradients.

Kimi Delta Attention is written here as the recurrence that defines it. The kernel works
in chunks: a chunk of C = 16 tokens with incoming state S, G the running sum of the log decays g:

    k_in = k e^G   q_in = q e^G   k_out = k e^-G   k_end = k e^(G_C - G)
    a = strictly lower (k_in k_out^T)              read = lower (q_in k_out^T)
    U = (I + diag(beta) a)^-1 diag(beta) (V - k_in S)
    O = q_in S + read U                            S' = diag(e^G_C) S + k_end^T U

The gate's bound of -5 keeps e^-G finite within a chunk.

    test_kernels.py
"""
import torch
import torch.nn.functional as F

import kernels
import mxfp4


def recurrent(q, k, v, g, beta):
    """[B, h, T, d] (beta [B, h, T]); q already scaled, g = log decay -> o [B, h, T, d]."""
    state = q.new_zeros(q.shape[0], q.shape[1], q.shape[3], v.shape[3])
    out = []
    for t in range(q.shape[2]):
        state = state * g[:, :, t].exp().unsqueeze(-1)
        err = v[:, :, t] - torch.einsum("bhk,bhkv->bhv", k[:, :, t], state)
        state = state + k[:, :, t].unsqueeze(-1) * (beta[:, :, t, None] * err).unsqueeze(-2)
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
    return torch.stack(out, 2)


def plain_conv(x, taps, heads):
    y = F.silu(F.conv1d(F.pad(x.transpose(1, 2), (3, 0)), taps, groups=x.shape[2])).transpose(1, 2)
    q, k, v = (z.reshape(*z.shape[:2], heads, -1) for z in y.chunk(3, -1))
    unit = lambda z: z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    return torch.cat([z.flatten(2) for z in (unit(q) * q.shape[-1] ** -0.5, unit(k), v)], -1)


def plain_mixer(x, taps, g, beta):
    b, t, heads = beta.shape
    qkv = plain_conv(x, taps, heads).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
    o = recurrent(*qkv, g.view(b, t, heads, -1).transpose(1, 2), beta.transpose(1, 2))
    return o.transpose(1, 2).flatten(2)


def plain_situ(x):
    g, u = x.chunk(2, -1)
    return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)


def compare(names, plain, fast, args):
    results = []
    for f, dtype in ((plain, torch.float64), (fast, torch.float32)):
        leaves = [a.to(dtype).requires_grad_() for a in args]
        y = f(*leaves)
        weight = torch.sin(torch.arange(y.numel(), dtype=dtype)).view_as(y)
        (y * weight).sum().backward()
        results.append([y.detach()] + [x.grad for x in leaves])
    for name, x, y in zip(names, *results):
        print(f"{name}: {((x - y).abs().max() / x.abs().max()).item():.1e}")


def main():
    torch.manual_seed(1)
    b, t, h, d = 2, 96, 3, 64
    args = [torch.randn(b, t, 3 * h * d), torch.randn(3 * h * d, 1, 4) * 0.5,
            -5 * torch.sigmoid(4 * torch.randn(b, t, h * d)), torch.sigmoid(2 * torch.randn(b, t, h))]
    compare(("o", "dx", "dtaps", "dg", "dbeta"), plain_mixer,
            lambda x, w, g, beta: kernels.Kda.apply(kernels.Conv.apply(x, w), g, beta), args)
    compare(("situ", "dx"), plain_situ, kernels.Situ.apply, [torch.randn(7, 64) * 100])
    w = torch.randn(64, 256) * torch.exp(torch.randn(64, 1) * 3)
    w[0, :32] = 0
    w[1, :32] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 4)
    assert torch.equal(kernels.Mxfp4Snap.apply(w), mxfp4.quantize(w)[0])
    print("mxfp4: equal")


if __name__ == "__main__":
    main()
