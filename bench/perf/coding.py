#!/usr/bin/env python3
"""What coding the trunk and the scales of experts without loss brings: the same model packed plain
and coded, run alternately; bytes on disk, bytes read for a token, seconds for a token, and the same
logits."""

import argparse
import hashlib
import pathlib
import shutil
import statistics
import sys
import tempfile

import perf

FEWER_BYTES = 0.22


def decode(options, model, tokens, logits):
    run = perf.Run(options.thimble, ["run", "-m", model, "--ids", "1,2", "-n", 1 + tokens, "-c", 64,
                                     "--memory", options.memory, "--io", "direct", "--out-ids",
                                     "--logits", logits]).need()
    return run.stats, hashlib.sha256(logits.read_bytes()).hexdigest(), run.out


def main():
    parser = perf.parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--memory", default="1.5G")
    parser.add_argument("--tokens", type=int, default=2, help="decoded in each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    perf.print_head("lossless coding", options.thimble)
    shape = ["--arch", "kimi-k3", "--layers", options.layers, "--distinct-layers", 1,
             "--distinct-experts", 16]
    models = {name: options.dir / f"k3-{name}-{options.layers}" for name in ("plain", "coded")}
    perf.make_model(options.thimble, models["plain"], shape, 11e9)
    if not (models["coded"] / "manifest.json").exists():
        perf.Run(options.thimble, ["synth", *shape, "-o", models["coded"]]).need()
    failures = perf.Failures()
    seconds = {name: [] for name in models}
    reads, results = {}, set()
    with tempfile.TemporaryDirectory() as scratch:
        logits = pathlib.Path(scratch) / "logits"
        first = {name: decode(options, model, 0, logits)[0] for name, model in models.items()}
        for _ in range(options.rounds):
            for name, model in models.items():
                stats, digest, text = decode(options, model, options.tokens, logits)
                results.add((digest, text))
                seconds[name].append(stats["decode_s"] / options.tokens)
                reads[name] = (stats["read_bytes"] - first[name]["read_bytes"]) / options.tokens
    perf.print_table(["", "on disk", "read for a token", "s a token, median (least to most)"],
                     [[name, perf.size(perf.stored_bytes(models[name])), perf.size(reads[name]),
                       perf.spread(seconds[name])] for name in models])
    failures.check(len(results) == 1, "the same logits and tokens from both")
    share = 1 - reads["coded"] / reads["plain"]
    failures.check(share >= FEWER_BYTES, f"{share:.1%} fewer bytes for a token")
    ratio = statistics.median(seconds["coded"]) / statistics.median(seconds["plain"])
    print(f"time for a token: {ratio:.2f} of that with the plain container")
    for model in models.values():
        shutil.rmtree(model)
    failures.exit()


if __name__ == "__main__":
    sys.exit(main())
