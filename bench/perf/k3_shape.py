#!/usr/bin/env python3
"""Kimi K3 in full size inside hard budgets: the same bits for every budget, reader and number of
threads; VmHWM under the budget, inside a memory cgroup of the same size; bytes read for a token as
planned; no slower with more memory. The model is made by `thimble synth`; its layers and experts
share what is stored, so that 93 layers and 82,432 experts take 22.5 GB of disk."""

import hashlib
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

import perf

FULL_BYTES = 22.5e9
SHORT_BYTES = 10.8e9
VARIANT_BUDGET = "3G"  # under which readers and threads are compared
CONTEXT = 8
PLAN_TOLERANCE = 0.01
NOISE = 1.10  # a larger budget may seem slower by so much


def model_of(options):
    """Directory, arguments of synth and size of the model that is wanted."""
    if options.layers:
        return (options.dir / f"k3-{options.layers}-layers",
                ["--arch", "kimi-k3", "--layers", options.layers, "--distinct-layers", 1,
                 "--distinct-experts", 32], SHORT_BYTES)
    return (options.dir / "k3-full",
            ["--arch", "kimi-k3", "--distinct-layers", 2, "--distinct-experts", 160], FULL_BYTES)


class Bench:
    """Runs the cases and keeps what must be equal."""

    def __init__(self, options, model):
        self.options = options
        self.model = model
        self.failures = perf.Failures()
        self.hashes = {}
        self.ids = {}
        self.rows = []

    def run(self, budget, mode, threads, tokens):
        """One token of prompt and `tokens` generated: as many sweeps through the model."""
        name = f"{budget}, {mode}, -t {threads}"
        with tempfile.TemporaryDirectory() as scratch:
            logits = pathlib.Path(scratch) / "logits"
            run = perf.Run(self.options.thimble, [
                "run", "-m", self.model, "--ids", self.options.id, "-n", tokens, "-c", CONTEXT,
                "--memory", budget, "--io", mode, "-t", threads, "--logits", logits,
                "--out-ids"], limit=None if self.options.no_cgroup else perf.parse_size(budget))
            killed = run.code < 0
            self.failures.check(run.code == 0, f"{name}: ends well"
                                + (" (killed)" if killed else "" if run.code == 0 else run.err))
            if run.code != 0:
                return None
            self.hashes[name] = hashlib.sha256(logits.read_bytes()).hexdigest()[:12]
        self.ids.setdefault(tokens, set()).add(tuple(run.stats["ids"]))
        limit = perf.parse_size(budget)
        self.failures.check(run.peak <= limit,
                            f"{name}: VmHWM {run.peak:,} of {limit:,} bytes")
        self.judge_cgroup(name, run)
        sweep = run.stats["prefill_s"] + run.stats["decode_s"]
        self.rows.append([name, tokens, f"{run.peak / 1e6:.1f}",
                          f"{run.stats['read_bytes'] / 1e9:.2f}",
                          f"{run.stats['read_bytes'] / sweep / 1e9:.3f}", f"{sweep / tokens:.1f}",
                          f"{run.stats['io_wait_s'] / sweep:.0%}", self.hashes[name]])
        return run

    def judge_cgroup(self, name, run):
        if run.cgroup:
            peak, killed, swapped = run.cgroup
            self.failures.check(killed == 0 and swapped == 0,
                                f"{name}: cgroup peak {peak:,} bytes, {killed} killed, "
                                f"{swapped} bytes swapped")
        elif run.obstacle:
            print(f"        {name}: NOT in a cgroup: {run.obstacle}")

    def judge_reads(self, budget, threads, first, longer):
        """The sweeps by which the two runs differ have neither pinning nor a first read-ahead."""
        measured = ((longer.stats["read_bytes"] - first.stats["read_bytes"])
                    / (len(longer.stats["ids"]) - len(first.stats["ids"])))
        planned = perf.plan(self.options.thimble, [
            "-m", self.model, "--memory", budget, "--cores", threads, "-c", CONTEXT,
            "--drive", 1])["bytes_per_token"]["expected"]["total"]
        self.failures.check(abs(measured / planned - 1) <= PLAN_TOLERANCE,
                            f"{budget}: {measured / 1e9:.3f} GB read for a token, "
                            f"{planned / 1e9:.3f} planned ({measured / planned - 1:+.2%})")


def measure(bench, threads):
    """Every budget, `rounds` times in turn; seconds of a decoded token by budget."""
    options = bench.options
    seconds = {budget: [] for budget in options.memory}
    for turn in range(options.rounds):
        for budget in options.memory:
            first = bench.run(budget, "direct", threads, 1) if turn == 0 else None
            longer = bench.run(budget, "direct", threads, 1 + options.tokens)
            if longer:
                seconds[budget].append(longer.stats["decode_s"] / options.tokens)
            if first and longer:
                bench.judge_reads(budget, threads, first, longer)
    return {budget: statistics.median(values) for budget, values in seconds.items() if values}


def compare_variants(bench, threads):
    modes = perf.io_modes(bench.options.thimble)
    if "mmap" not in modes:
        print("        --io mmap: this thimble does not have it; not compared")
    for mode in modes:
        if mode != "direct":
            bench.run(VARIANT_BUDGET, mode, threads, 1)
    if threads > 1:
        bench.run(VARIANT_BUDGET, "direct", 1, 1)


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("--layers", type=int, help="a model of fewer layers, for a quick check")
    parser.add_argument("--memory", nargs="+", default=["1.5G", "3G", "8.24G", "16G"],
                        help="the budgets")
    parser.add_argument("--tokens", type=int, default=1, help="tokens decoded in each longer run")
    parser.add_argument("--rounds", type=int, default=1, help="times that each budget is timed")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count()))
    parser.add_argument("--id", type=int, default=1, help="the token to start from")
    parser.add_argument("--no-cgroup", action="store_true")
    parser.add_argument("--no-variants", action="store_true", help="budgets alone")
    parser.add_argument("--keep", action="store_true", help="leave the model there")
    options = parser.parse_args()
    if options.tokens < 1 or options.tokens + 1 > CONTEXT:
        sys.exit(f"--tokens: expected 1 to {CONTEXT - 1}")
    perf.print_head("Kimi K3's shape" + (f", {options.layers} layers" if options.layers else ""),
                    options.thimble)
    model, arguments, needed = model_of(options)
    perf.make_model(options.thimble, model, arguments, needed)
    bench = Bench(options, model)
    seconds = measure(bench, options.threads)
    if not options.no_variants:
        compare_variants(bench, options.threads)
    bench.failures.check(len(set(bench.hashes.values())) == 1,
                         f"the logits of {len(bench.hashes)} cases are the same bits")
    bench.failures.check(all(len(ids) == 1 for ids in bench.ids.values()),
                         "and so are the tokens")
    order = sorted(seconds, key=perf.parse_size)
    for less, more in zip(order, order[1:]):
        bench.failures.check(seconds[more] <= NOISE * seconds[less],
                             f"{more} is no slower than {less}: {seconds[more]:.1f} s a token, "
                             f"{seconds[less]:.1f} s")
    perf.print_table(["case", "sweeps", "VmHWM MB", "read GB", "GB/s", "s/sweep", "waiting",
                      "logits"], bench.rows)
    if not options.keep:
        shutil.rmtree(model)
    bench.failures.exit()


if __name__ == "__main__":
    main()
