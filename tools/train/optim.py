"""Muon for the matrices, AdamW for everything else; state in shared memory.

Muon (momentum, then the nearest orthogonal matrix by a Newton-Schulz iteration) learns
faster per token than Adam at this size; matrices of one shape are iterated in one batch.
Both take their gradients from a function, as several processes contribute to them.
"""
import collections

import torch

_NS = (3.4445, -4.7750, 2.0315)       # quintic whose iterates bring singular values near 1
_NS_STEPS = 4


def orthogonalize(g):
    """[n, a, b] -> each matrix with its singular values pushed to about 1, in bfloat16."""
    a, b, c = _NS
    flip = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if flip else g)
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(_NS_STEPS):
        s = torch.bmm(x, x.transpose(1, 2))
        x = a * x + torch.bmm(b * s + c * torch.bmm(s, s), x)
    return (x.transpose(1, 2) if flip else x).float()


def _state(params):
    return [torch.zeros_like(p).share_memory_() for p in params]


class Muon:
    def __init__(self, params, lr, momentum=0.95, decay=0.1):
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.groups = collections.defaultdict(list)
        self.velocity = _state(params)
        for p, v in zip(params, self.velocity):
            self.groups[tuple(p.shape[-2:])].append((p, v))

    @torch.no_grad()
    def step(self, gradient, scale):
        lr = self.lr * scale
        for shape, members in self.groups.items():
            directions = []
            for p, v in members:
                g = gradient(p)
                v.lerp_(g, 1 - self.momentum)
                directions.append(g.lerp_(v, self.momentum).view(-1, *shape))
            update = orthogonalize(torch.cat(directions)).split([len(x) for x in directions])
            gain = max(1.0, shape[0] / shape[1]) ** 0.5
            for (p, _), u in zip(members, update):
                p.mul_(1 - lr * self.decay).add_(u.view_as(p), alpha=-lr * gain)

    def state(self):
        return self.velocity


class AdamW:
    """params: [(tensor, lr, decay)]."""

    def __init__(self, params, betas=(0.9, 0.95), eps=1e-10):
        self.params, self.betas, self.eps = params, betas, eps
        self.first, self.second = (_state([p for p, _, _ in params]) for _ in range(2))

    @torch.no_grad()
    def step(self, gradient, scale, count):
        b1, b2 = self.betas
        fix1, fix2 = 1 - b1 ** count, 1 - b2 ** count
        for (p, lr, decay), m, v in zip(self.params, self.first, self.second):
            g = gradient(p)
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            p.mul_(1 - lr * scale * decay)
            p.addcdiv_(m, (v / fix2).sqrt_().add_(self.eps), value=-lr * scale / fix1)

    def state(self):
        return self.first + self.second


def split_parameters(model):
    """-> (matrices for Muon, [(tensor, lr, decay)] for AdamW)."""
    muon, adam = [], []
    for name, p in model.named_parameters():
        if name.startswith("layers.0.attention_res"):
            continue                              # the first layer has nothing to mix
        vector = p.dim() == 1 or name.endswith((".conv", "ffn.gate", ".b_proj"))
        if name == "embed":
            adam.append((p, 6e-3, 0.02))
        elif name == "head":
            adam.append((p, 2e-3, 0.02))
        elif vector:
            adam.append((p, 3e-3, 0.0))
        else:
            muon.append(p)
    return muon, adam


def share_out(items, size, n):
    """Deals items to n lists of nearly equal total size, the largest first."""
    lists, totals = [[] for _ in range(n)], [0] * n
    for item in sorted(items, key=size, reverse=True):
        i = totals.index(min(totals))
        lists[i].append(item)
        totals[i] += size(item)
    return lists
