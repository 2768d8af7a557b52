"""Trains the small model on the CPU; may be stopped and started again at any time.

    train.py FOLDER STEPS            checkpoint and log go to FOLDER

One single-threaded process per core, each with its share of the batch: on a machine that
others use too this is far quicker than threads, which would wait for each other thousands
of times a step. Parameters, gradients and optimizer state lie in shared memory; each
process updates its share of the parameters.

The learning rate warms up, stays, and falls linearly to zero over the last part of the
run. Meanwhile the sequences grow, then the experts move onto the MXFP4 grid and the trunk
onto bfloat16, both straight-through, so that the exported bits are the trained ones.
"""
import os
import sys
import time

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from config import Dims
from data import Batches
from layers import round_bf16, snap_mxfp4
from model import Model
from optim import AdamW, Muon, share_out, split_parameters

WORKERS = 2
WARM_UP = 60
DECAY_FROM = 0.50                    # fraction of the run
SNAP_FROM = 0.55                     # experts on the MXFP4 grid
ROUND_FROM = 0.80                    # trunk on bfloat16
LENGTHS = ((0.0, 256), (0.45, 512), (0.85, 1024), (0.96, 2048))
TOKENS_PER_WORKER = 1024             # or one sequence, if that is longer
MUON_LR = 0.02
BALANCE_RATE, BALANCE_UNTIL = 2e-3, 0.90
SAVE_EVERY, EVAL_EVERY, EVAL_WINDOWS = 20, 100, 16


def identity(w):
    return w


def schedule(progress, step):
    """-> (learning rate factor, cast, snap, sequence length)"""
    rate = min(1.0, (step + 1) / WARM_UP, (1 - progress) / (1 - DECAY_FROM))
    cast = round_bf16 if progress >= ROUND_FROM else identity
    snap = snap_mxfp4 if progress >= SNAP_FROM else identity
    return rate, cast, snap, [n for start, n in LENGTHS if progress >= start][-1]


@torch.no_grad()
def held_out_nats(model, ids, cast, snap):
    """Mean nats a token over the first windows of the held-out text."""
    count = 512 * EVAL_WINDOWS
    rows = torch.from_numpy(ids[:count + 1].astype(np.int64))
    total = 0.0
    for i in range(0, count, 2048):
        logits = model.logits(model(rows[i:i + 2048].view(-1, 512), cast, snap), cast)
        total += F.cross_entropy(logits, rows[i + 1:i + 2049], reduction="sum").item()
    return total / count


class Run:
    """Everything the workers share; made before they fork."""

    def __init__(self, folder, steps):
        torch.manual_seed(20)
        self.folder, self.steps = folder, steps
        self.model = Model(Dims()).share_memory()
        matrices, others = split_parameters(self.model)
        self.params = matrices + [p for p, _, _ in others]
        self.grads = [{p: torch.zeros_like(p).share_memory_() for p in self.params} for _ in range(WORKERS)]
        self.loads = torch.zeros(WORKERS, Dims().layers, Dims().experts).share_memory_()
        self.losses = torch.zeros(WORKERS).share_memory_()
        self.skipped = torch.zeros(WORKERS).share_memory_()      # batches left out, since the start
        self.muon = [Muon(ps, MUON_LR) for ps in share_out(matrices, lambda p: p.numel(), WORKERS)]
        self.adam = [AdamW(ps) for ps in share_out(others, lambda p: p[0].numel(), WORKERS)]
        self.start, self.tokens, self.seconds = 0, 0, 0.0
        self.checkpoint = os.path.join(folder, "checkpoint.pt")
        if os.path.exists(self.checkpoint):
            self.resume()
        self.barrier = mp.Barrier(WORKERS)

    def optimizer_state(self):
        return [t for o in self.muon + self.adam for t in o.state()]

    def resume(self):
        saved = torch.load(self.checkpoint)
        self.model.load_state_dict(saved["model"])
        for mine, theirs in zip(self.optimizer_state(), saved["optimizer"]):
            mine.copy_(theirs)
        self.start, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]

    def save(self, step):
        if not all(p.isfinite().all() for p in self.params):
            raise FloatingPointError(f"a parameter is no longer finite; {self.checkpoint} is the last good state")
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer_state(), "step": step,
                    "tokens": self.tokens, "seconds": self.seconds}, self.checkpoint + ".new")
        os.replace(self.checkpoint + ".new", self.checkpoint)

    def gradient(self, p):
        """The sum over the workers; both optimizers ignore its scale."""
        return torch.add(*(g[p] for g in self.grads))

    def learn(self, rank, step, batches):
        """One step of one worker."""
        model = self.model
        rate, cast, snap, length = schedule(step / self.steps, step)
        ids, targets, mask = batches.batch((step, rank), max(1, TOKENS_PER_WORKER // length), length)
        nats = F.cross_entropy(model.logits(model(ids, cast, snap), cast), targets.reshape(-1), reduction="none")
        loss = (nats * mask.view(-1)).sum() / mask.sum()
        loss.backward()
        # A batch whose gradient overflows float32 is left out; one step of it would end the run.
        usable = all(p.grad.isfinite().all() for p in self.params)
        for p in self.params:
            self.grads[rank][p].copy_(p.grad) if usable else self.grads[rank][p].zero_()
            p.grad = None
        self.losses[rank] = loss.item()
        self.skipped[rank] += not usable
        for i, layer in enumerate(model.layers[1:], 1):
            self.loads[rank, i] = layer.ffn.load
        self.barrier.wait()
        self.muon[rank].step(self.gradient, rate)
        self.adam[rank].step(self.gradient, rate, step + 1)
        if rank == 0 and step / self.steps < BALANCE_UNTIL:
            for i, layer in enumerate(model.layers[1:], 1):
                layer.ffn.balance(self.loads[:, i].sum(0), BALANCE_RATE * rate)
        self.barrier.wait()
        return rate, cast, snap, length


def work(rank, run):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    batches = Batches(run.folder)
    heldout = np.load(os.path.join(run.folder, "heldout.npy"))
    log = open(os.path.join(run.folder, "train.log"), "a", buffering=1)
    mark, losses = time.time(), []
    for step in range(run.start, run.steps):
        rate, cast, snap, length = run.learn(rank, step, batches)
        if rank:
            continue
        batch = WORKERS * max(TOKENS_PER_WORKER, length)
        run.tokens += batch
        losses.append(run.losses.nanmean().item())
        if (step + 1) % 20 == 0:
            now = time.time()
            took, mark = now - mark, now
            run.seconds += took
            print(f"step {step + 1} loss {np.mean(losses):.4f} rate {rate:.3f} length {length} "
                  f"{20 * batch / took:.0f} tokens/s {run.seconds:.0f} s, {run.skipped.sum():.0f} skipped", file=log)
            losses = []
        last = step + 1 == run.steps
        if (step + 1) % EVAL_EVERY == 0 or last:
            print(f"heldout {held_out_nats(run.model, heldout, cast, snap):.4f} nats a token", file=log)
        if (step + 1) % SAVE_EVERY == 0 or last:
            run.save(step + 1)


def main(folder, steps):
    run = Run(folder, steps)
    workers = [mp.Process(target=work, args=(rank, run)) for rank in range(WORKERS)]
    for w in workers:
        w.start()
    while any(w.is_alive() for w in workers):
        time.sleep(1)
        if any(w.exitcode for w in workers):          # the others wait for it at the barrier
            for w in workers:
                w.kill()
            sys.exit("a worker failed")


if __name__ == "__main__":
    mp.set_start_method("fork")
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]))
