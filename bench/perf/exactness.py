#!/usr/bin/env python3
"""Largest difference of the logits from those of the models' own reference code, relative to the
largest logit of the prompt, over all positions of the fixtures' prompts; the worst prompt counts."""

import array
import json
import pathlib
import struct
import tempfile

import perf

TOLERANCE = 5e-5
MODELS = ("k3-small", "kimi-linear-small")


def read_tensors(path):
    """Name -> floats, of the F32 tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            tensors[name] = array.array("f", data[8 + length + begin:8 + length + end])
    return tensors


def main():
    options = perf.parser(__doc__).parse_args()
    perf.print_head("exactness", options.thimble)
    failures = perf.Failures()
    rows = []
    for model in MODELS:
        folder = perf.FIXTURES / model
        expected = read_tensors(folder / "expected.safetensors")
        prompts = json.loads((folder / "expected.json").read_text())["prompts"]
        worst = (0.0, 0.0, 0.0)  # relative, difference, largest logit: of the worst prompt
        positions = wrong = 0
        for index, prompt in enumerate(prompts):
            with tempfile.TemporaryDirectory() as scratch:
                file = pathlib.Path(scratch) / "logits"
                run = perf.Run(options.thimble, [
                    "run", "-m", folder, "--ids", ",".join(map(str, prompt["tokens"])),
                    "-n", len(prompt["greedy"]), "--logits", file]).need()
                found = array.array("f", file.read_bytes())
            reference = expected[f"p{index}.logits"]
            assert len(found) == len(reference)
            difference = max(abs(a - b) for a, b in zip(found, reference))
            largest = max(map(abs, reference))
            worst = max(worst, (difference / largest, difference, largest))
            positions += len(prompt["tokens"])
            wrong += run.stats["ids"] != prompt["greedy"]
        rows.append([model, positions, *[f"{value:.3g}" for value in worst],
                     f"{len(prompts) - wrong} of {len(prompts)}"])
        failures.check(worst[0] <= TOLERANCE, f"{model}: within {TOLERANCE} of the largest logit")
        failures.check(wrong == 0, f"{model}: the greedy continuations are the reference's")
    perf.print_table(["model", "positions", "relative", "difference", "largest logit",
                      "greedy texts"], rows)
    failures.exit()


if __name__ == "__main__":
    main()
