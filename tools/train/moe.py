"""The latent mixture of experts: tokens sorted by expert, bias-only load balancing."""
import torch
import torch.nn as nn

from layers import linear, matmul, rms, situ


class _Permute(torch.autograd.Function):
    """rows = source[index], where row i of the source went to the places `back[i]`.

    Backward gathers too, which is far quicker than the scatter autograd would do.
    """

    @staticmethod
    def forward(ctx, source, index, back):
        ctx.save_for_backward(back)
        return source.index_select(0, index)

    @staticmethod
    def backward(ctx, grad):
        back, = ctx.saved_tensors
        n, k = back.shape
        grad = grad.index_select(0, back.reshape(-1))
        return grad.view(n, k, -1).sum(1) if k > 1 else grad, None, None


class _GroupedLinear(torch.autograd.Function):
    """Rows of x, sorted by expert, times their expert's matrix: y = x W_e^T."""

    @staticmethod
    def forward(ctx, x, w, counts):
        ctx.save_for_backward(x, w)
        ctx.counts = counts
        y = x.new_empty(x.shape[0], w.shape[1])
        for e, (xe, ye) in enumerate(zip(x.split(counts), y.split(counts))):
            torch.mm(xe, w[e].t(), out=ye)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        rows = zip(x.split(ctx.counts), grad.split(ctx.counts), dx.split(ctx.counts))
        for e, (xe, ge, dxe) in enumerate(rows):
            torch.mm(ge, w[e], out=dxe)
            torch.mm(ge.t(), xe, out=dw[e])
        return dx, dw, None


class LatentMoE(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d = d
        self.gate = linear(d.hidden, d.experts, 0.5)
        self.register_buffer("bias", torch.zeros(d.experts))
        self.load = None                                  # tokens an expert got in the last forward pass
        self.routed_expert_down_proj = linear(d.hidden, d.latent)
        self.routed_expert_up_proj = linear(d.latent, d.hidden, 0.5)
        self.routed_expert_norm = nn.Parameter(torch.ones(d.latent))
        shared = d.inner * d.shared
        self.shared_gate_proj = linear(d.hidden, shared)
        self.shared_up_proj = linear(d.hidden, shared)
        self.shared_down_proj = linear(shared, d.hidden, 0.5)
        self.w1 = nn.Parameter(torch.randn(d.experts, d.inner, d.latent) * d.latent ** -0.5)
        self.w3 = nn.Parameter(torch.randn(d.experts, d.inner, d.latent) * d.latent ** -0.5)
        self.w2 = nn.Parameter(torch.randn(d.experts, d.latent, d.inner) * d.inner ** -0.5)

    def route(self, x, cast):
        score = torch.sigmoid(x @ cast(self.gate).t())
        chosen = (score.detach() + self.bias).topk(self.d.top_k, dim=-1, sorted=False)[1]
        weight = score.gather(1, chosen)
        return chosen, weight / (weight.sum(-1, keepdim=True) + 1e-20)

    def forward(self, x, cast, snap):
        """x [N, hidden]; `cast` rounds trunk weights, `snap` expert weights."""
        d, n = self.d, x.shape[0]
        chosen, weight = self.route(x, cast)
        flat = chosen.reshape(-1)
        count = torch.bincount(flat, minlength=d.experts)
        self.load = count
        counts = count.tolist()
        order = flat.argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(n * d.top_k)
        z = matmul(x, cast(self.routed_expert_down_proj))
        xs = _Permute.apply(z, order // d.top_k, place.view(n, d.top_k))
        hidden = situ(_GroupedLinear.apply(xs, torch.cat([snap(self.w1), snap(self.w3)], 1), counts))
        ys = _GroupedLinear.apply(hidden, snap(self.w2), counts)
        picked = _Permute.apply(ys, place, order.view(-1, 1)).view(n, d.top_k, -1)
        y = (picked * weight.unsqueeze(-1)).sum(1)
        routed = matmul(rms(y, cast(self.routed_expert_norm), d.eps), cast(self.routed_expert_up_proj))
        gate_up = torch.cat([cast(self.shared_gate_proj), cast(self.shared_up_proj)])
        return routed + matmul(situ(matmul(x, gate_up)), cast(self.shared_down_proj))

    @torch.no_grad()
    def balance(self, load, rate):
        """Loss-free balancing: push the selection bias of busy experts down, of idle ones up."""
        self.bias += rate * torch.sign(load.mean() - load)
        self.bias -= self.bias.mean()
