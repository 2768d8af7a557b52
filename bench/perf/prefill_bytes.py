#!/usr/bin/env python3
"""Bytes read for a prompt token of Kimi K3's shape, for chunks of 1, 16, 128 and 1,024 tokens, and
that a chunk reads nothing twice. What a chunk reads is the difference of two runs, one with twice as
many chunks as the other: what stays in memory, and what is read ahead at the end, is in both."""

import json
import random
import shutil
import sys

import perf
from k3_shape import PLAN_TOLERANCE, model_of

CHUNKS = {1: 4, 16: 2, 128: 1, 1024: 1}  # tokens of a chunk: chunks of the shorter run
EMBEDDING = 14336  # bytes of a token's row
IDS = 9973  # of the prompts, drawn below it


class Bench:
    def __init__(self, options, model):
        self.options = options
        self.model = model
        self.failures = perf.Failures()
        plan = perf.plan(options.thimble, ["-m", model, "--memory", options.memory])
        reads = plan["bytes_per_token"]["nothing_resident"]
        self.layer_bytes, self.head_bytes = reads["trunk_layers"], reads["output_head"]
        inspect = json.loads(perf.Run(options.thimble, [
            "inspect", "-m", model, "--json"]).need().out)
        self.moe_layers, self.experts = inspect["moe_layers"], inspect["experts"]
        self.expert_bytes = round(reads["routed_experts"] / self.moe_layers /
                                  inspect["experts_per_token"])

    def prompt(self, width, chunks):
        """The figures of a run over `chunks` chunks of `width` tokens."""
        draw = random.Random(7)
        ids = ",".join(str(draw.randrange(IDS)) for _ in range(width * chunks))
        run = perf.Run(self.options.thimble, [
            "run", "-m", self.model, "--ids", ids, "-n", 1, "-c", width * chunks + 1, "-t",
            self.options.threads, "--memory", self.options.memory, "--prefill-chunk", width,
            "--io", "direct", "--out-ids"]).need()
        stats = run.stats
        name = f"chunks of {width}"
        misses = stats["expert_requests"] - stats["expert_hits"]
        self.failures.check(run.peak <= stats["budget_bytes"],
                            f"{name}: VmHWM {run.peak:,} of {stats['budget_bytes']:,} bytes")
        self.failures.check(stats["expert_requests"] <= chunks * self.moe_layers * self.experts,
                            f"{name}: a chunk asks at most once for an expert")
        early, rest = divmod(stats["expert_read_bytes"] - misses * self.expert_bytes,
                             self.expert_bytes)
        self.failures.check(rest == 0 and early >= 0,
                            f"{name}: each of {misses} experts that were not there was read once")
        self.failures.check(stats["expert_requests"] + early <=
                            chunks * self.moe_layers * self.experts,
                            f"{name}: {early} were read early for nothing, none twice in a chunk")
        return stats

    def measure(self, width):
        chunks = CHUNKS[width]
        less, more = self.prompt(width, chunks), self.prompt(width, 2 * chunks)
        trunk, experts, seconds = ((more[key] - less[key]) / chunks for key in
                                   ("trunk_read_bytes", "expert_read_bytes", "prefill_s"))
        pinned = more["budget_ledger"].get("pinned trunk", 0)
        # Pinned blocks are spread evenly over layers and head.
        share = min(1, pinned / (self.layer_bytes + self.head_bytes))
        once = (1 - share) * self.layer_bytes + width * EMBEDDING
        self.failures.check(abs(trunk - once) <= PLAN_TOLERANCE * self.layer_bytes,
                            f"chunks of {width}: {trunk / 1e9:.3f} GB of trunk, once what does not "
                            f"stay: {once / 1e9:.3f} GB")
        return [width, f"{trunk / 1e9:.3f}", f"{experts / 1e9:.3f}",
                perf.size((trunk + experts) / width), f"{seconds / width:.3g}"]


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("--layers", type=int, help="fewer layers than the 93 of the model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="3G")
    parser.add_argument("--chunks", type=lambda text: [int(width) for width in text.split(",")],
                        default=list(CHUNKS), help="some of 1,16,128,1024")
    parser.add_argument("--keep", action="store_true", help="leave the model there")
    options = parser.parse_args()
    if not set(options.chunks) <= set(CHUNKS):
        sys.exit("--chunks: expected some of " + ",".join(map(str, CHUNKS)))
    perf.print_head("bytes of a prompt" + (f", {options.layers} layers" if options.layers else ""),
                    options.thimble)
    model, arguments, needed = model_of(options)
    perf.make_model(options.thimble, model, arguments, needed)
    bench = Bench(options, model)
    rows = [bench.measure(width) for width in options.chunks]
    perf.print_table(["tokens of a chunk", "trunk GB", "experts GB", "read for a token",
                      "s a token"], rows)
    if not options.keep:
        shutil.rmtree(model)
    bench.failures.exit()


if __name__ == "__main__":
    main()
