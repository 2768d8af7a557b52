#!/usr/bin/env python3
"""The share of the drive that drive-bound decoding gets: its rate against plain sequential direct
reads from the same files, with blocks of the same size and as many in flight, alternately in the
same run; medians. The first sweep, which fills the memory that stays, does not count."""

import argparse
import json
import mmap
import os
import pathlib
import re
import shutil
import statistics
import sys
import threading
import time

import perf

SHARE = 0.95


class SequentialReader:
    """Reads files from end to end past the page cache, `depth` blocks in flight: each thread takes
    the next block of the file."""

    def __init__(self, files, block_bytes, depth):
        self.block_bytes = block_bytes
        self.descriptors = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]
        self.blocks = [(descriptor, offset) for descriptor in self.descriptors
                       for offset in range(0, os.fstat(descriptor).st_size - block_bytes + 1,
                                           block_bytes)]
        # In large pages, as the engine's: the kernel pins what a direct read fills page by page.
        # Shared memory, which is Python's default, has small ones.
        memory = mmap.mmap(-1, block_bytes * depth, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        self.buffers = [memoryview(memory)[i * block_bytes:(i + 1) * block_bytes]
                        for i in range(depth)]
        self.next = 0
        self.lock = threading.Lock()

    def _take(self):
        with self.lock:
            block = self.blocks[self.next % len(self.blocks)]
            self.next += 1
            return block

    def _work(self, buffer, end):
        while time.monotonic() < end:
            descriptor, offset = self._take()
            done = os.preadv(descriptor, [buffer], offset)
            if done != self.block_bytes:
                raise OSError(f"a direct read of {self.block_bytes} bytes brought {done}")
            with self.lock:
                self.bytes += done

    def rate(self, seconds):
        """Bytes a second, over about `seconds`. Goes on where it stopped the last time."""
        self.bytes = 0
        start = time.monotonic()
        threads = [threading.Thread(target=self._work, args=(buffer, start + seconds))
                   for buffer in self.buffers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.bytes / (time.monotonic() - start)


def shape_of(description):
    """Depth and bytes of a block, of e.g. "io_uring, direct, depth 4 x 4 MiB"."""
    found = re.search(r"direct.*depth (\d+) x (\d+) ([MK])iB", description)
    if not found:
        sys.exit(f"the engine read by '{description}', expected direct reads by io_uring")
    return int(found[1]), int(found[2]) << (20 if found[3] == "M" else 10)


def decode(options, model, tokens):
    """The figures of a run of one token of prompt and `tokens` decoded."""
    run = perf.Run(options.thimble, ["run", "-m", model, "--ids", 1, "-n", 1 + tokens, "-c", 64,
                                     "--memory", options.memory, "--io", "direct", "--out-ids",
                                     "-t", options.threads]).need()
    return run.stats


def main():
    parser = perf.parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-m", "--model", type=pathlib.Path,
                        help="a container (default: Kimi K3's shape with --layers layers)")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--memory", default="1.5G")
    parser.add_argument("--tokens", type=int, default=3, help="decoded in each round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count()))
    parser.add_argument("--keep", action="store_true", help="leave the model there")
    options = parser.parse_args()
    perf.print_head("share of the drive", options.thimble)
    model = options.model or options.dir / f"k3-drive-{options.layers}"
    # Stored once each, so that neither reader meets the same bytes sooner than the other.
    made = not options.model and perf.make_model(
        options.thimble, model,
        ["--arch", "kimi-k3", "--layers", options.layers, "--distinct-experts", 64],
        7.2e9 + (options.layers - 1) * (1.2e9 + 64 * 17.6e6))
    failures = perf.Failures()
    rates = {"decode": [], "plain": []}
    waits = []
    first = decode(options, model, 0)
    depth, block_bytes = shape_of(first["io"])
    manifest = json.loads((model / "manifest.json").read_text())
    plain = SequentialReader([model / file["name"] for file in manifest["files"]], block_bytes,
                             depth)
    for _ in range(options.rounds):
        stats = decode(options, model, options.tokens)
        read_bytes = stats["read_bytes"] - first["read_bytes"]
        rates["decode"].append(read_bytes / stats["decode_s"] / 1e9)
        waits.append(stats["io_wait_s"] / (stats["prefill_s"] + stats["decode_s"]))
        rates["plain"].append(plain.rate(stats["decode_s"]) / 1e9)
    perf.print_table(["GB/s", "median (least to most)", "rounds"],
                     [[name, perf.spread(values), len(values)] for name, values in rates.items()])
    print(f"blocks of {perf.size(block_bytes)}, {depth} in flight; the cores waited for the drive "
          f"{statistics.median(waits):.0%} of the time")
    share = statistics.median(rates["decode"]) / statistics.median(rates["plain"])
    failures.check(share >= SHARE, f"decoding gets {share:.1%} of the plain rate, {SHARE:.0%} wanted"
                   + ("" if statistics.median(waits) > 0.02
                      else "; the cores hardly waited: this was not bound by the drive"))
    if made and not options.keep:
        shutil.rmtree(model)
    failures.exit()


if __name__ == "__main__":
    main()
