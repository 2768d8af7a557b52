#!/usr/bin/env python3
"""What a long context costs: seconds of a decoded token at 1K, 8K and 64K of context, KDA and MLA
apart, and the memory of the session beside the plan's. Heads have Kimi K3's sizes (KDA 128 x 128;
MLA 512 + 64 numbers a position), 32 of them, in layers of Kimi-Linear-48B's width. To read 64K tokens
of prompt would take an hour, so the contexts are made: a session file of a short prompt whose
latents are repeated."""

import ctypes
import ctypes.util
import json
import pathlib
import shutil
import statistics
import struct
import tempfile

import perf

CONTEXTS = (1024, 8192, 65536)
MODEL_BYTES = 2.5e9  # of each
LAYERS = (2, 4)  # KDA and MLA; three times KDA and MLA
MORE_KDA = 2
FLAT = 1.25  # KDA's share may seem to grow by so much: it is a difference of two runs
LINEAR = 1.3  # and what MLA adds for a position
HEAD = struct.Struct("<8sII7Q")  # docs/SESSIONS.md


class Session:
    """The session file that a run left behind, and copies of it with longer contexts."""

    def __init__(self, file, config):
        data = file.read_bytes()
        *self.start, self.tokens, self.pending, random, text, state, self.logits = HEAD.unpack(
            data[:HEAD.size])
        at = HEAD.size + 8
        count = self.tokens + self.pending
        self.ids = struct.unpack(f"<{count}I", data[at:at + 4 * count])
        at += 4 * count
        self.between = data[at:at + random + text]
        self.sizes = (random, text)
        at += random + text
        self.state = data[at:at + state]
        self.rest = data[at + state:-8]
        self.layers = config["num_hidden_layers"]
        self.mla_layers = config["linear_attn_config"]["full_attn_layers"]
        self.row = 4 * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
        library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
        self.hash = library.XXH3_64bits
        self.hash.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
        self.hash.restype = ctypes.c_uint64

    def digest(self, data):
        return struct.pack("<Q", self.hash(data, len(data)))

    def write(self, file, tokens):
        """The same conversation `tokens` long."""
        latents = self.tokens * self.row
        kda = (len(self.state) - len(self.mla_layers) * latents) // (
            self.layers - len(self.mla_layers))
        at, state = 0, []
        for layer in range(1, self.layers + 1):
            length = latents if layer in self.mla_layers else kda
            piece = self.state[at:at + length]
            at += length
            if layer in self.mla_layers:
                piece = (piece * (tokens // self.tokens + 1))[:tokens * self.row]
            state.append(piece)
        state = b"".join(state)
        ids = (self.ids[:self.tokens] * (tokens // self.tokens + 1))[:tokens]
        ids += self.ids[self.tokens:]
        head = HEAD.pack(*self.start, tokens, self.pending, *self.sizes, len(state), self.logits)
        data = b"".join([head, self.digest(head), struct.pack(f"<{len(ids)}I", *ids),
                         self.between, state, self.rest])
        file.write_bytes(data + self.digest(data))


class Bench:
    def __init__(self, options):
        self.options = options
        self.failures = perf.Failures()

    def decode(self, model, session, context):
        """One run that goes on from `session`, made `context` tokens long."""
        with tempfile.TemporaryDirectory(dir=self.options.dir) as scratch:
            file = pathlib.Path(scratch) / "session"
            session.write(file, context - self.options.tokens)
            return perf.Run(self.options.thimble, [
                "run", "-m", model, "--session", file, "-n", self.options.tokens, "-c",
                context + 2, "-t", self.options.threads, "--memory", self.options.memory,
                "--preload", "--out-ids"]).need()

    def check_memory(self, model, context, run):
        ledger = perf.plan(self.options.thimble, [
            "-m", model, "--memory", self.options.memory, "-c", context + 2, "--cores",
            self.options.threads])["memory"]["ledger"]
        planned, found = ledger["session state"], run.stats["budget_ledger"]["session state"]
        self.failures.check(planned == found,
                            f"{model.name}, context {context}: a session takes {found:,} bytes, "
                            f"as planned ({planned:,})")
        self.failures.check(run.peak <= run.stats["budget_bytes"],
                            f"{model.name}, context {context}: VmHWM {run.peak:,} bytes is within "
                            "the budget")

    def prepare(self, layers):
        """A model, and the session of a short prompt on it."""
        model = self.options.dir / f"heads-{layers}-layers"
        perf.make_model(self.options.thimble, model,
                        ["--arch", "kimi-linear-48b", "--layers", layers, "--distinct-experts", 16],
                        MODEL_BYTES)
        with tempfile.TemporaryDirectory(dir=self.options.dir) as scratch:
            file = pathlib.Path(scratch) / "session"
            perf.Run(self.options.thimble, [
                "run", "-m", model, "--ids", ",".join(str(1 + i * i % 9973) for i in range(256)),
                "-n", 1, "--session", file, "--memory", self.options.memory]).need()
            return model, Session(file, json.loads((model / "config.json").read_text()))

    def measure(self):
        """[layers][context]: seconds of a token in each round. All are measured in each, so that
        what else the machine does is the same for all."""
        models = [self.prepare(layers) for layers in LAYERS]
        times = [{context: [] for context in CONTEXTS} for _ in models]
        for turn in range(self.options.rounds):
            for context in CONTEXTS:
                for of_model, (model, session) in zip(times, models):
                    run = self.decode(model, session, context)
                    of_model[context].append(
                        run.stats["decode_s"] / (run.stats["generated_tokens"] - 1))
                    if turn == 0:
                        self.check_memory(model, context, run)
        if not self.options.keep:
            for model, _ in models:
                shutil.rmtree(model)
        return times


def median_difference(more, less):
    """Median over the rounds: what differs between rounds is left out."""
    return statistics.median(a - b for a, b in zip(more, less))


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="8G")
    parser.add_argument("--tokens", type=int, default=64, help="decoded in each run")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--keep", action="store_true", help="leave the models there")
    options = parser.parse_args()
    perf.print_head("cost of context", options.thimble)
    bench = Bench(options)
    times = bench.measure()
    few, many = times
    short = CONTEXTS[0]
    kda = {context: median_difference(many[context], few[context]) / MORE_KDA
           for context in CONTEXTS}
    added = {context: statistics.mean(median_difference(of_model[context], of_model[short])
                                      for of_model in times) for context in CONTEXTS[1:]}
    perf.print_table(["context", *[f"{layers} layers: ms a token" for layers in LAYERS],
                      "a KDA layer: ms", f"MLA over {short}: ms", "ns a position"],
                     [[context, *[perf.spread([1e3 * second for second in of_model[context]])
                                  for of_model in times], f"{1e3 * kda[context]:.2f}",
                       *([f"{1e3 * added[context]:.2f}",
                          f"{1e9 * added[context] / (context - short):.0f}"]
                         if context in added else ["", ""])] for context in CONTEXTS])
    bench.failures.check(kda[CONTEXTS[-1]] <= FLAT * kda[short],
                         "a KDA layer, its experts included, takes the same at every context")
    each = [added[context] / (context - short) for context in CONTEXTS[1:]]
    bench.failures.check(each[1] <= LINEAR * each[0] and each[0] <= LINEAR * each[1],
                         "what MLA adds grows with the context and no faster")
    bench.failures.exit()


if __name__ == "__main__":
    main()
