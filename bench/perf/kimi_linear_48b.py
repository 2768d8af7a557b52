#!/usr/bin/env python3
"""Kimi-Linear-48B's shape with 4-bit experts (about 29 GB) inside 8.24 GB: seconds from
exec to the first output, tokens a second of decoding and of a prompt, hits of the expert cache, bytes
read and their rate."""

import os
import shutil

import perf

FULL_BYTES = 29.5e9


def model_of(options):
    """Directory, arguments of synth, bytes; the model of full size only where the disk has room."""
    arguments = ["--arch", "kimi-linear-48b"]
    model = options.dir / "kimi-linear-48b"
    options.dir.mkdir(parents=True, exist_ok=True)
    room = shutil.disk_usage(options.dir).free - perf.KEEP_FREE
    there = (model / "manifest.json").exists()
    if not options.layers and not options.distinct_experts and (there or room >= FULL_BYTES):
        return model, arguments, FULL_BYTES
    distinct = options.distinct_experts or 64
    if not options.distinct_experts and not options.layers:
        print(f"the disk has no room for {perf.size(FULL_BYTES)}: SHARED extents, {distinct} of "
              "256 experts stored; hits are those of the router, since the cache goes by number")
    layers = options.layers or 27
    needed = 3e9 + layers * (0.13e9 + distinct * 3.8e6)
    name = f"kimi-linear-{layers}-{distinct}"
    return (options.dir / name,
            [*arguments, "--layers", layers, "--distinct-experts", distinct], needed)


def ids(count, seed):
    """Tokens that look random."""
    result = []
    for _ in range(count):
        seed = (seed * 1103515245 + 12345) % (1 << 31)
        result.append(str(seed % 160000))
    return ",".join(result)


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("--memory", default="8.24G")
    parser.add_argument("--tokens", type=int, default=64, help="decoded in each round")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the long prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count()))
    parser.add_argument("--layers", type=int, help="fewer layers, for a quick check")
    parser.add_argument("--distinct-experts", type=int, help="fewer stored experts")
    parser.add_argument("--keep", action="store_true", help="leave the model there")
    options = parser.parse_args()
    perf.print_head("Kimi-Linear-48B's shape, 4-bit experts", options.thimble)
    model, arguments, needed = model_of(options)
    perf.make_model(options.thimble, model, arguments, needed)
    limit = perf.parse_size(options.memory)
    failures = perf.Failures()
    columns = {name: {"first output, s": [], "tokens/s": [], "GB/s": [], "hits": [],
                      "MB a token": []} for name in ("decode", "prompt")}
    peak = killed = 0
    for turn in range(options.rounds):
        for name, count, tokens in (("decode", 1, options.tokens), ("prompt", options.prompt, 1)):
            perf.touch_memory(limit)
            run = perf.Run(options.thimble, [
                "run", "-m", model, "--ids", ids(count, 7 + turn), "-n", tokens, "-c",
                options.prompt + options.tokens, "--memory", options.memory, "-t", options.threads,
                "--io", "direct", "--out-ids", "--temp", 1], limit=limit).need()
            stats = run.stats
            seconds = stats["prefill_s"] + stats["decode_s"]
            made = count + stats["generated_tokens"] - 1
            column = columns[name]
            column["first output, s"].append(run.first_output_s)
            column["tokens/s"].append(made / seconds)
            column["GB/s"].append(stats["read_bytes"] / seconds / 1e9)
            column["hits"].append(100 * stats["expert_hits"] / max(1, stats["expert_requests"]))
            column["MB a token"].append(stats["read_bytes"] / made / 1e6)
            peak = max(peak, run.peak)
            killed += run.cgroup[1] if run.cgroup else 0
            if run.obstacle and turn == 0:
                print(f"NOT in a cgroup: {run.obstacle}")
    names = [f"decode, {options.tokens} tokens", f"prompt, {options.prompt} tokens"]
    perf.print_table(["", *next(iter(columns.values()))],
                     [[name, *map(perf.spread, column.values())]
                      for name, column in zip(names, columns.values())])
    print("hits in %; each run starts with nothing resident, so they grow with its length")
    failures.check(peak <= limit, f"VmHWM {peak:,} of {limit:,} bytes")
    failures.check(killed == 0, "nothing was killed")
    if not options.keep:
        shutil.rmtree(model)
    failures.exit()


if __name__ == "__main__":
    main()
