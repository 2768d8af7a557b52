#!/usr/bin/env python3
"""Answers of `thimble serve` computed together: eight answers, one, two, four and eight at once. Tokens a
second in all, sweeps over the weights and bytes read for a token, and whether each answer is the
text that it is alone."""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
import urllib.request

import perf

ANSWERS = 8
AT_ONCE = (1, 2, 4, 8)


class Server:
    """A server with room for all answers at once; every measurement is of the same one."""

    def __init__(self, options, model):
        self.process = subprocess.Popen(
            [options.thimble, "serve", "-m", model, "--port", "0", "-c", "256", "--parallel",
             str(ANSWERS), "--memory", options.memory, "-t", str(options.threads)],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"(http://\S+)/v1", line):
                self.base = found[1]
                return
        raise SystemExit("the server did not start")

    def metrics(self):
        with urllib.request.urlopen(self.base + "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in
                (line.split() for line in lines if not line.startswith("#"))}

    def answer(self, number, tokens):
        """Text of one of the answers, always of the same prompt and seed. Drawn from all of the
        vocabulary: random weights find all of it likely, and top-p would sort it."""
        body = {"prompt": [1000 + 97 * number + 31 * i for i in range(4)], "max_tokens": tokens,
                "seed": number, "top_p": 1}
        request = urllib.request.Request(self.base + "/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            choice = json.load(answer)["choices"][0]
        assert choice["finish_reason"] == "length", "the model ended its text"
        return choice["text"]

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()


def measure(server, at_once, tokens):
    """All answers, `at_once` of them in flight, and what each of their tokens took."""
    before, start = server.metrics(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        texts = list(pool.map(lambda number: server.answer(number, tokens), range(ANSWERS)))
    seconds, after = time.monotonic() - start, server.metrics()
    moved = {name: after[name] - before[name] for name in after}
    count = ANSWERS * tokens
    return texts, {"tokens/s": count / seconds,
                   "sweeps/token": moved["thimble_sweeps_total"] / count,
                   "MB/token": moved["thimble_read_bytes_total"] / count / 1e6,
                   "waiting": moved["thimble_read_wait_seconds_total"] / seconds}


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--memory", default="1.5G")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count()))
    parser.add_argument("--keep", action="store_true", help="leave the model there")
    options = parser.parse_args()
    perf.print_head("answers at once: Kimi-Linear-48B's shape", options.thimble)
    model = options.dir / f"kimi-linear-streams-{options.layers}"
    made = perf.make_model(options.thimble, model,
                           ["--arch", "kimi-linear-48b", "--layers", options.layers],
                           2e9 + options.layers * 1e9)
    perf.write_tokenizer(model, 163_584)
    failures = perf.Failures()
    server = Server(options, model)
    try:
        # Fills what stays in memory, and makes all prompts known ones.
        alone, _ = measure(server, 1, options.tokens)
        figures = {at_once: [] for at_once in AT_ONCE}
        same = {at_once: True for at_once in AT_ONCE}
        for _ in range(options.rounds):
            for at_once in AT_ONCE:
                texts, figure = measure(server, at_once, options.tokens)
                figures[at_once].append(figure)
                same[at_once] = same[at_once] and texts == alone
        peak = server.metrics()["thimble_memory_peak_bytes"]
    finally:
        code = server.close()
    columns = list(figures[1][0])
    perf.print_table(["at once", *columns],
                     [[at_once, *[perf.spread([round_[name] for round_ in rounds])
                                  for name in columns]] for at_once, rounds in figures.items()])
    rate = {at_once: statistics.median(round_["tokens/s"] for round_ in rounds)
            for at_once, rounds in figures.items()}
    for at_once in AT_ONCE:
        failures.check(same[at_once], f"{at_once} at once: each answer is its text alone")
    for at_once in AT_ONCE[1:]:
        failures.check(rate[at_once] > rate[1],
                       f"{at_once} at once: {rate[at_once] / rate[1]:.2f} times the tokens of one")
    failures.check(peak <= perf.parse_size(options.memory), f"VmHWM {peak:,.0f} is in the budget")
    failures.check(code == 0, "the server ended cleanly")
    if made and not options.keep:
        shutil.rmtree(model)
    failures.exit()


if __name__ == "__main__":
    main()
