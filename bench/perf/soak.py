#!/usr/bin/env python3
"""Whether memory creeps: VmRSS over 2,000 decode steps, and over 50 sessions of one process, each
begun empty and thrown away."""

import base64
import json
import pathlib
import statistics
import tempfile
import time

import perf

MODEL = perf.FIXTURES / "k3-small"
WINDOW = 64  # tokens of a session
CREEP = 1 << 20  # bytes that the last quarter may lie above the second


class Watch:
    """VmRSS of a process, every few milliseconds."""

    def __init__(self):
        self.samples = []

    def __call__(self, pid):
        rss = perf.proc_field(f"/proc/{pid}/status", "VmRSS")
        if rss:
            self.samples.append(rss)
        time.sleep(0.002)

    def quarters(self):
        count = len(self.samples) // 4
        return [self.samples[i * count:(i + 1) * count] for i in range(4)]


def endless(folder):
    """The model without a token that ends its text, and with a tokenizer of its size: 256 bytes and
    256 special tokens."""
    for file in MODEL.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((MODEL / "config.json").read_text())
    config["eos_token_id"] = config["text_config"]["eos_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tiktoken.model").write_text("".join(
        f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256)))
    return folder


def judge(name, watch, failures, rows):
    quarters = [statistics.median(quarter) for quarter in watch.quarters()]
    rows.append([name, len(watch.samples), *[f"{median / 1e6:.2f}" for median in quarters],
                 f"{max(watch.samples) / 1e6:.2f}"])
    failures.check(quarters[3] <= quarters[1] + CREEP,
                   f"{name}: VmRSS of the last quarter is that of the second, within 1 MiB")


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="decode steps")
    parser.add_argument("--sessions", type=int, default=50)
    options = parser.parse_args()
    perf.print_head("soak: k3-small", options.thimble)
    failures = perf.Failures()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        model = endless(pathlib.Path(scratch))
        common = ["-m", model, "-t", 1, "--memory", "64M"]
        watch = Watch()
        run = perf.Run(options.thimble, ["run", *common, "--ids", 1, "-n", options.steps + 1, "-c",
                                         options.steps + 2, "--out-ids"], watch=watch).need()
        failures.check(run.stats["generated_tokens"] == options.steps + 1,
                       f"{options.steps} decode steps were made")
        failures.check(run.peak <= run.stats["budget_bytes"], "VmHWM is within the budget of 64 MB")
        judge(f"{options.steps} decode steps", watch, failures, rows)
        text = model / "text"
        text.write_text("".join(chr(97 + i * i % 23) for i in range(WINDOW * options.sessions + 1)))
        watch = Watch()
        perf.Run(options.thimble, ["eval", *common, "-f", text, "-c", WINDOW, "--json"],
                 watch=watch).need()
        judge(f"{options.sessions} sessions of {WINDOW} tokens", watch, failures, rows)
    perf.print_table(["VmRSS in MB", "samples", "quarter 1", "2", "3", "4", "most"], rows)
    failures.exit()


if __name__ == "__main__":
    main()
