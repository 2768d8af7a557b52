"""The small Kimi K3: KDA and gated MLA mixers, attention residuals, latent MoE."""
import torch
import torch.nn as nn
import torch.nn.functional as F

import kernels
from layers import linear, matmul, rms, situ
from moe import LatentMoE

LORA_EPS = 1e-6
L2_EPS = 1e-6


class KdaMixer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d = d
        h, p, r = d.hidden, d.kda_width, d.kda_dim
        self.q_proj, self.k_proj, self.v_proj = linear(h, p), linear(h, p), linear(h, p)
        self.g_proj, self.f_a_proj, self.f_b_proj = linear(h, p), linear(h, r), linear(r, p, 0.5)
        self.b_proj = linear(h, d.kda_heads, 0.5)
        self.o_proj = linear(p, h, 0.5)
        taps = torch.randn(3 * p, 1, d.conv) * 0.1
        taps[:, :, -1] += 1.0                              # start by passing the current token through
        self.conv = nn.Parameter(taps)
        self.A_log = nn.Parameter(torch.zeros(d.kda_heads))
        # memories from a few tokens to a thousand: -5 sigmoid(dt_bias) = -1/lifetime
        life = torch.exp(torch.rand(p) * 5.5 + 1.4)
        self.dt_bias = nn.Parameter(torch.logit(1 / (-d.gate_bound * life)))
        self.o_norm = nn.Parameter(torch.ones(d.kda_dim))

    def forward(self, x, cast):
        d, (b, t, _) = self.d, x.shape
        p = d.kda_width
        fused = torch.cat([cast(w) for w in (self.q_proj, self.k_proj, self.v_proj, self.g_proj,
                                             self.f_a_proj, self.b_proj)])
        qkv, gate, f, beta = matmul(x, fused).split([3 * p, p, d.kda_dim, d.kda_heads], -1)
        z = matmul(f, cast(self.f_b_proj)) + self.dt_bias
        rate = self.A_log.exp().repeat_interleave(d.kda_dim)
        g = d.gate_bound * torch.sigmoid(rate * z)
        o = kernels.Kda.apply(kernels.Conv.apply(qkv, self.conv), g, torch.sigmoid(beta))
        y = rms(o.view(b, t, d.kda_heads, d.kda_dim), self.o_norm, d.eps).view(b, t, p) * torch.sigmoid(gate)
        return matmul(y, cast(self.o_proj))


class MlaMixer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d = d
        n, h = d.mla_heads, d.hidden
        self.q_a_proj, self.q_a_layernorm = linear(h, d.q_lora), nn.Parameter(torch.ones(d.q_lora))
        self.q_b_proj = linear(d.q_lora, n * (d.qk_nope + d.qk_extra))
        self.kv_a_proj_with_mqa = linear(h, d.kv_lora + d.qk_extra)
        self.kv_a_layernorm = nn.Parameter(torch.ones(d.kv_lora))
        self.kv_b_proj = linear(d.kv_lora, n * (d.qk_nope + d.v_dim))
        self.g_proj, self.o_proj = linear(h, n * d.v_dim), linear(n * d.v_dim, h, 0.5)

    def forward(self, x, cast):
        d, (b, t, _) = self.d, x.shape
        n = d.mla_heads
        q = matmul(rms(matmul(x, cast(self.q_a_proj)), cast(self.q_a_layernorm), LORA_EPS), cast(self.q_b_proj))
        q = q.view(b, t, n, -1).transpose(1, 2).reshape(b * n, t, -1)
        latent, extra = matmul(x, cast(self.kv_a_proj_with_mqa)).split([d.kv_lora, d.qk_extra], -1)
        kv = matmul(rms(latent, cast(self.kv_a_layernorm), LORA_EPS), cast(self.kv_b_proj))
        k, v = kv.view(b, t, n, -1).transpose(1, 2).split([d.qk_nope, d.v_dim], -1)
        k = torch.cat([k, extra.unsqueeze(1).expand(-1, n, -1, -1)], -1).reshape(b * n, t, -1)
        future = torch.full((t, t), -1e9).triu(1)
        score = torch.baddbmm(future, q, k.transpose(1, 2), alpha=(d.qk_nope + d.qk_extra) ** -0.5)
        o = torch.bmm(score.softmax(-1), v.reshape(b * n, t, -1))
        o = o.view(b, n, t, -1).transpose(1, 2).reshape(b, t, -1)
        return matmul(o * torch.sigmoid(matmul(x, cast(self.g_proj))), cast(self.o_proj))


class DenseMlp(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate_proj, self.up_proj = linear(d.hidden, d.dense_inner), linear(d.hidden, d.dense_inner)
        self.down_proj = linear(d.dense_inner, d.hidden, 0.5)

    def forward(self, x, cast, snap):
        return matmul(situ(matmul(x, torch.cat([cast(self.gate_proj), cast(self.up_proj)]))), cast(self.down_proj))


class DepthMix(nn.Module):
    """Attention residual: a softmax over the stored blocks and the running sum, per token."""

    def __init__(self, d):
        super().__init__()
        self.eps = d.eps
        self.norm, self.proj = nn.Parameter(torch.ones(d.hidden)), nn.Parameter(torch.zeros(d.hidden))

    def forward(self, candidates, cast):
        """candidates: [(rows [N, hidden], 1/rms [N, 1])]; the caller stores 1/rms of blocks."""
        key = (cast(self.norm) * cast(self.proj)).unsqueeze(1)
        weight = torch.cat([(c @ key) * inv for c, inv in candidates], 1).softmax(-1)
        out = candidates[0][0] * weight[:, :1]
        for i, (c, _) in enumerate(candidates[1:], 1):
            out = torch.addcmul(out, c, weight[:, i:i + 1])
        return out


class Layer(nn.Module):
    def __init__(self, d, index):
        super().__init__()
        self.d, self.index = d, index
        self.input_layernorm = nn.Parameter(torch.ones(d.hidden))
        self.post_attention_layernorm = nn.Parameter(torch.ones(d.hidden))
        self.attention_res, self.mlp_res = DepthMix(d), DepthMix(d)
        self.mixer = MlaMixer(d) if d.is_mla(index) else KdaMixer(d)
        self.ffn = LatentMoE(d) if index else DenseMlp(d)


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d = d
        self.embed = nn.Parameter(torch.randn(d.vocab, d.hidden) * 0.5)
        self.head = nn.Parameter(torch.randn(d.vocab, d.hidden) * d.hidden ** -0.5 * 0.5)
        self.layers = nn.ModuleList(Layer(d, i) for i in range(d.layers))
        self.output_res = DepthMix(d)
        self.norm = nn.Parameter(torch.ones(d.hidden))

    def forward(self, ids, cast=lambda w: w, snap=lambda w: w):
        """ids [B, T] -> final hidden states [B * T, hidden], normalised, ready for `head`."""
        d, (b, t) = self.d, ids.shape
        with_inv = lambda c: (c, (c.square().mean(-1, keepdim=True) + d.eps).rsqrt())
        cur = F.embedding(ids.reshape(-1), cast(self.embed))
        blocks = []
        for layer in self.layers:
            seen = layer.attention_res(blocks + [with_inv(cur)], cast) if blocks else cur
            if layer.index % d.block == 0:
                blocks.append(with_inv(cur))
                cur = None
            a = layer.mixer(rms(seen, cast(layer.input_layernorm), d.eps).view(b, t, -1), cast).reshape(b * t, -1)
            cur = a if cur is None else cur + a
            seen = layer.mlp_res(blocks + [with_inv(cur)], cast)
            cur = cur + layer.ffn(rms(seen, cast(layer.post_attention_layernorm), d.eps), cast, snap)
        return rms(self.output_res(blocks + [with_inv(cur)], cast), cast(self.norm), d.eps)

    def logits(self, hidden, cast=lambda w: w):
        return matmul(hidden, cast(self.head))
