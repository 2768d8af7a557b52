#!/usr/bin/env python3
"""Thimble and llama.cpp (npm package node-llama-cpp) on the same weights and tokens, alternately,
each in a memory cgroup of the same size, starting with nothing in the page cache: Kimi-Linear-48B's
shape with 4-bit experts. With --fixtures: the logits of both on the fixtures instead."""

import os
import pathlib
import shutil
import statistics
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "perf"))

import fixtures  # noqa: E402
import llama  # noqa: E402
import perf  # noqa: E402
from kimi_linear_48b import ids  # noqa: E402

# Measure -> unit, whether more is better.
MEASURES = {"prompt": ("tokens/s", True), "decode": ("tokens/s", True),
            "first token": ("s", False), "whole run": ("s", False), "read": ("GB", False),
            "peak RSS": ("GB", False)}
LAYERS, EXPERTS = 27, 256  # of Kimi-Linear-48B
# What `pack` makes of Thimble's model beside it, for --trunk q8_0: name of the run -> its options.
PACKED = {"Thimble, coded": [], "Thimble, q8": ["--trunk", "q8"]}
REMEDY = "give --dir another drive, or fewer --layers"


def figures(run, stats):
    """The measures of a run; both engines write the same fields."""
    return {"prompt": stats["prompt_tokens"] / stats["prefill_s"],
            "decode": (stats["generated_tokens"] - 1) / stats["decode_s"],
            "first token": run.first_output_s, "whole run": run.seconds,
            "read": run.read_bytes / 1e9, "peak RSS": run.peak / 1e9}


def container_bytes(layers, distinct):
    """Of the model that synth makes, from above."""
    return 1.6e9 + layers * 0.12e9 + (layers - 1) * distinct * 3.77e6


def paths_of(options, layers, distinct):
    """The containers, by how the table calls their runs, and the GGUF."""
    name = f"kimi-linear-{layers}-{distinct}"
    models = {"Thimble": options.dir / name}
    if options.trunk == "q8_0":
        models |= {run: options.dir / f"{name}-{run.split()[-1]}" for run in PACKED}
    return models, options.dir / f"{name}-{options.trunk}.gguf"


def layers_of(options):
    """As many as asked for; else all where they are there, or as many as the disk has room for, in
    each container and the GGUF."""
    models, target = paths_of(options, LAYERS, EXPERTS)
    made = all(path.exists() for path in (*models.values(), target))
    if options.layers or options.distinct_experts or made:
        return options.layers or LAYERS
    options.dir.mkdir(parents=True, exist_ok=True)
    room = shutil.disk_usage(options.dir).free - perf.KEEP_FREE
    layers = LAYERS
    while layers > 4 and (len(models) + 1) * container_bytes(layers, EXPERTS) > room:
        layers -= 1
    if layers < LAYERS:
        print(f"the disk has no room for the containers and the GGUF: {layers} of {LAYERS} layers, "
              "all experts of each; --distinct-experts 64 has all layers, in less room for Thimble")
    return layers


def prepare(options):
    """The containers and the GGUF, made where they are not there."""
    layers, distinct = layers_of(options), options.distinct_experts or EXPERTS
    models, target = paths_of(options, layers, distinct)
    exact = models["Thimble"]
    arguments = ["--arch", "kimi-linear-48b", "--layers", layers, "--distinct-experts", distinct]
    perf.make_model(options.thimble, exact, arguments, container_bytes(layers, distinct))
    if not target.exists():
        perf.need_room(options.dir, llama.exported_bytes(exact, options.trunk), "the GGUF",
                       REMEDY)
        llama.export(exact, target, options.trunk)
    for run in (run for run in PACKED if run in models):
        packed = models[run]
        if not (packed / "manifest.json").exists():
            perf.need_room(options.dir, perf.stored_bytes(exact), packed.name, REMEDY)
            perf.Run(options.thimble, ["pack", "-m", exact, "-o", packed, *PACKED[run]]).need()
        print(f"{packed.name}: {perf.size(perf.stored_bytes(packed))}")
    print(f"{target.name}: {perf.size(target.stat().st_size)}")
    return models, target


def thimble_run(options, model, prompt, turn):
    return perf.Run(options.thimble, [
        "run", "-m", model, "--ids", prompt, "-n", options.tokens + 1, "-c",
        options.prompt + options.tokens + 1, "--memory", options.memory, "-t", options.threads,
        "--out-ids", "--temp", 1, "-s", turn, *(["--preload"] if options.preload else [])],
        perf.parse_size(options.memory)).need()


def measure(options, engine, models, target):
    """Rounds of all, alternately. Name -> its measures, round by round. Both engines process the
    same tokens: those that Thimble samples from the exact model are given to llama.cpp."""
    limit = perf.parse_size(options.memory)
    files = [target, *(file for model in models.values() for file in model.iterdir()
                       if file.is_file())]
    results = {name: [] for name in (*models, "llama.cpp")}

    def clear():
        perf.forget_pages(files)
        perf.touch_memory(limit)

    for turn in range(options.rounds):
        prompt = ids(options.prompt, 7 + turn)
        forced = None
        for name, model in models.items():
            clear()
            run = thimble_run(options, model, prompt, turn)
            if run.obstacle and turn == 0:
                print(f"NOT in a cgroup: {run.obstacle}")
            results[name].append(figures(run, run.stats))
            forced = forced or run.stats["ids"][:-1]
        clear()
        other = engine.run(limit, model=target, prompt=list(map(int, prompt.split(","))),
                           forced=forced, threads=options.threads)
        if other.code == 0:
            results["llama.cpp"].append(figures(other, other.figures))
        else:
            print(f"round {turn + 1}: llama.cpp ended with {other.code} after {other.seconds:.0f} s"
                  f"\n{other.err[-1000:]}", flush=True)
    return results


def meaning(name, who, ours, theirs):
    """One sentence on a measure of both engines, round by round: who is ahead, and by how much."""
    unit, more_is_better = MEASURES[name]
    if max(ours) >= min(theirs) and max(theirs) >= min(ours):
        return f"{name}: {who} and llama.cpp differ by no more than the spread"
    ratio = statistics.median(ours) / statistics.median(theirs)
    ratio = ratio if more_is_better else 1 / ratio
    ahead, factor = (who, ratio) if ratio >= 1 else ("llama.cpp", 1 / ratio)
    behind = "llama.cpp" if ratio >= 1 else who
    how = {"tokens/s": "faster", "s": "sooner", "GB": "less"}[unit]
    return f"{name}: {ahead} is ahead of {behind}, {factor:.3g} times {how}"


def report(results):
    rows = []
    for name, (unit, _) in MEASURES.items():
        cells = [perf.spread([figures[name] for figures in rounds]) if rounds else "failed"
                 for rounds in results.values()]
        rows.append([f"{name}, {unit}", *cells])
    perf.print_table(["", *results], rows)
    theirs = results.pop("llama.cpp")
    for who, ours in results.items() if theirs else ():
        for name in MEASURES:
            print(meaning(name, who, *([figures[name] for figures in rounds]
                                       for rounds in (ours, theirs))))
    print("prompt: llama.cpp has read the model before, Thimble reads it meanwhile, but for "
          "--preload; first token,\nfrom exec, has both. read: from drives, as the kernel counts "
          "it. peak RSS of llama.cpp counts pages of the\nmapped file, which the kernel may take "
          "back; Thimble's is memory of its own.")


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("--fixtures", action="store_true", help="compare logits, and no speed")
    parser.add_argument("--memory", default="8.24G", help="of the cgroup, and Thimble's budget")
    parser.add_argument("--tokens", type=int, default=32, help="decoded after the first")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count()))
    parser.add_argument("--preload", action="store_true",
                        help="Thimble, too, reads what its memory holds before the prompt")
    parser.add_argument("--trunk", choices=("bf16", "q8_0"), default="bf16",
                        help="type of the GGUF's trunk; q8_0 rounds, and is smaller: then Thimble "
                             "runs twice more, on what pack makes of its model, without loss and "
                             "with --trunk q8")
    parser.add_argument("--layers", type=int, help="fewer layers, for a quick check")
    parser.add_argument("--distinct-experts", type=int, help="fewer experts in the container")
    parser.add_argument("--repack", action="store_true",
                        help="leave llama.cpp as it comes: it copies MXFP4 into memory, all of it")
    parser.add_argument("--keep", action="store_true", help="leave the models there")
    options = parser.parse_args()
    perf.print_head("against llama.cpp", options.thimble)
    folder = "node-repack" if options.repack else "node"
    engine = llama.Llama(options.dir / folder, options.repack)
    print(engine.version())
    if options.fixtures:
        fixtures.compare(options.thimble, engine, options.threads)
        return
    models, target = prepare(options)
    report(measure(options, engine, models, target))
    if not options.keep:
        for model in models.values():
            shutil.rmtree(model)
        target.unlink()


if __name__ == "__main__":
    main()
