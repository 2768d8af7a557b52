#!/usr/bin/env python3
"""Time from exec to the first read of weights, for Kimi K3 as a packed container and as a download
of 96 shards and 497,220 tensors, and the size of the stripped program. The shards have real headers
and holes for weights, so they take a few hundred MB of disk; needs strace."""

import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import perf

LIMIT = 1.0  # seconds
MOST_BYTES = 5e6
PATIENCE = 30  # seconds that a start may take before it is given up
PIECES = [("w1.weight_packed", 3072, 1792), ("w1.weight_scale", 3072, 112),
          ("w2.weight_packed", 3584, 1536), ("w2.weight_scale", 3584, 96),
          ("w3.weight_packed", 3072, 1792), ("w3.weight_scale", 3072, 112)]  # of one expert, U8
EXPERTS = 896
WIDTHS = {"BF16": 2, "F32": 4, "U8": 1}


# ---- a snapshot of holes


def published_shape(tensor):
    rows, cols = tensor["shape"]
    if "conv1d" in tensor["name"]:
        return [rows, 1, cols]
    return [cols] if rows == 1 and "res_proj" not in tensor["name"] else [rows, cols]


def layer_tensors(layer, number):
    prefix = f"language_model.model.layers.{number}."
    tensors = [(prefix + tensor["name"], tensor["dtype"], published_shape(tensor))
               for tensor in layer["tensors"]]
    if "experts" in layer:
        tensors += [(f"{prefix}block_sparse_moe.experts.{expert}.{name}", "U8", [rows, cols])
                    for expert in range(EXPERTS) for name, rows, cols in PIECES]
    return tensors


def write_shard(path, tensors):
    header, offset = {}, 0
    for name, dtype, shape in tensors:
        end = offset + WIDTHS[dtype]
        for extent in shape:
            end = offset + (end - offset) * extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)


def write_snapshot(container, folder):
    """What a download of the container's model would look like: a shard for each layer, then three
    for the rest."""
    manifest = json.loads((container / "manifest.json").read_text())
    rest = [("language_model." + tensor["name"], tensor["dtype"], published_shape(tensor))
            for tensor in manifest["globals"]]
    shards = [layer_tensors(layer, i) for i, layer in enumerate(manifest["layers"])]
    shards += [rest[:1], rest[1:-1], rest[-1:]]
    weight_map, total = {}, len(shards)
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{total:06}.safetensors"
        write_shard(folder / name, tensors)
        weight_map.update((tensor[0], name) for tensor in tensors)
    shutil.copy(container / "config.json", folder)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}))
    return total, len(weight_map)


# ---- the start


def first_reads(trace):
    """Seconds from exec to the first read at all, by which the drive is measured, and to the first
    of the last queue set up, by which the engine reads; None before there is one."""
    started = first = reading = None
    for line in trace.splitlines():
        found = re.match(r"\d+ +(\d+\.\d+) (\w+)\((\d*)(?:, (\d+))?", line)
        if not found:
            continue
        when, call = float(found[1]), found[2]
        if call == "execve" and started is None:
            started = when
        elif call == "io_uring_setup":
            reading = None
        elif call == "io_uring_enter" and found[4] and int(found[4]) > 0:
            first = first or when - started
            reading = reading or when - started
    return first, reading


def start(thimble, model, scratch):
    """Starts a run, waits until no queue was set up for a second after a read, and ends it."""
    trace = scratch / "trace"
    command = ["strace", "-f", "-ttt", "-e", "trace=execve,io_uring_setup,io_uring_enter", "-o",
               trace, thimble, "run", "-m", model, "--ids", "1", "-n", "1", "--memory", "3G",
               "--io", "direct"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    begin = time.monotonic()
    settled = None
    while process.poll() is None and time.monotonic() - begin < PATIENCE:
        time.sleep(0.5)
        before = settled
        settled = first_reads(trace.read_text())[1] if trace.exists() else None
        if settled is not None and settled == before:
            break
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    errors = process.communicate()[1]
    result = first_reads(trace.read_text()) if trace.exists() else (None, None)
    if result[1] is None:
        sys.exit(f"{model}: no read by io_uring within {PATIENCE} s\n{errors}")
    return result


def stripped_bytes(thimble, scratch):
    copy = scratch / "stripped"
    subprocess.run(["strip", "-o", copy, thimble], check=True)
    return copy.stat().st_size


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("-m", "--model", type=pathlib.Path,
                        help="container of Kimi K3's shape (default: that of k3_shape.py)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="leave the container there")
    options = parser.parse_args()
    if not shutil.which("strace"):
        sys.exit("this needs strace: apt install strace")
    perf.print_head("start: Kimi K3's shape", options.thimble)
    model = options.model or options.dir / "k3-full"
    made = not options.model and perf.make_model(
        options.thimble, model,
        ["--arch", "kimi-k3", "--distinct-layers", 2, "--distinct-experts", 160], 22.5e9)
    failures = perf.Failures()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        scratch = pathlib.Path(scratch)
        snapshot = scratch / "snapshot"
        snapshot.mkdir()
        shards, tensors = write_snapshot(model, snapshot)
        cases = {"container": model, f"{shards} shards, {tensors:,} tensors": snapshot}
        times = {name: [] for name in cases}
        for _ in range(options.rounds):
            for name, path in cases.items():
                times[name].append(start(options.thimble, path, scratch))
        for name, pairs in times.items():
            rows.append([name, perf.spread([pair[0] for pair in pairs]),
                         perf.spread([pair[1] for pair in pairs])])
            median = statistics.median(pair[1] for pair in pairs)
            failures.check(median < LIMIT, f"{name}: the first read of weights after {median:.3f} s,"
                           f" under {LIMIT} s wanted")
        binary = stripped_bytes(options.thimble, scratch)
    failures.check(binary < MOST_BYTES, f"the stripped program has {perf.size(binary)}, under "
                   f"{perf.size(MOST_BYTES)} wanted")
    perf.print_table(["seconds from exec, median", "drive measured", "weights read"], rows)
    if made and not options.keep:
        shutil.rmtree(model)
    failures.exit()


if __name__ == "__main__":
    main()
