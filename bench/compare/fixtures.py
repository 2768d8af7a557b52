"""Logits of Thimble and of llama.cpp on the fixtures, against those of the models' own reference
code."""

import array
import json
import pathlib
import shutil
import statistics
import tempfile

import exactness
import perf
from llama import export

MODELS = ("kimi-linear-small", "k3-small")
SAME_EPSILON = 1e-6
# Of llama.cpp from Thimble in the median, the epsilons being the same; single positions may differ
# by more, where nearly equal router scores fall the other way.
TOLERANCE = 1e-3


def thimble_logits(thimble, model, ids):
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / "logits"
        perf.Run(thimble, ["run", "-m", model, "--ids", ",".join(map(str, ids)), "-n", 1,
                           "--logits", file]).need()
        return array.array("f", file.read_bytes())


def differences(found, expected, positions):
    """Of every position: the largest difference, relative to the prompt's largest logit; and in how
    many positions the likeliest token is the same."""
    assert len(found) == len(expected)
    width = len(expected) // positions
    largest = max(map(abs, expected))
    relative, same = [], 0
    for begin in range(0, len(expected), width):
        a, b = found[begin:begin + width], expected[begin:begin + width]
        relative.append(max(abs(x - y) for x, y in zip(a, b)) / largest)
        same += a.index(max(a)) == b.index(max(b))
    return relative, same


def row(name, compared):
    """A line of the table from (found, expected, positions) of every prompt, and the largest
    difference and the median one."""
    relative, same = [], 0
    for item in compared:
        its_relative, its_same = differences(*item)
        relative += its_relative
        same += its_same
    return [name, len(relative), f"{max(relative):.2g}", f"{statistics.median(relative):.2g}",
            f"{same} of {len(relative)}"], max(relative), statistics.median(relative)


def with_epsilon(model, target, epsilon):
    """A copy of `model` whose rms_norm_eps is `epsilon`."""
    shutil.copytree(model, target, copy_function=shutil.copyfile)
    config = json.loads((target / "config.json").read_text())
    config.get("text_config", config)["rms_norm_eps"] = epsilon
    (target / "config.json").write_text(json.dumps(config))


def rows_of(name, thimble, llama, threads, scratch):
    """What row() says of every case, Thimble first."""
    model = perf.FIXTURES / name
    reference = exactness.read_tensors(model / "expected.safetensors")
    prompts = [prompt["tokens"] for prompt in
               json.loads((model / "expected.json").read_text())["prompts"]]
    expected = [reference[f"p{index}.logits"] for index in range(len(prompts))]
    lengths = [len(ids) for ids in prompts]

    def llama_logits(source, trunk):
        file = scratch / f"{name}-{trunk}.gguf"
        export(source, file, trunk)
        return llama.logits(file, prompts, threads)

    yield row(f"{name}: Thimble",
              zip([thimble_logits(thimble, model, ids) for ids in prompts], expected, lengths))
    for trunk in ("f32", "bf16", "q8_0"):
        theirs = llama_logits(model, trunk)
        yield row(f"{name}: llama.cpp, {trunk}", zip(theirs, expected, lengths))
    changed = scratch / name
    with_epsilon(model, changed, SAME_EPSILON)
    ours = [thimble_logits(thimble, changed, ids) for ids in prompts]
    theirs = llama_logits(changed, "f32")
    yield row(f"{name}, one epsilon: llama.cpp, f32, from Thimble",
              zip(theirs, ours, lengths))


def compare(thimble, llama, threads):
    """Prints the table; a promise is broken where Thimble is not the reference's, or the export is
    not the same model."""
    failures = perf.Failures()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            lines = list(rows_of(name, thimble, llama, threads, pathlib.Path(scratch)))
            rows += [line for line, _, _ in lines]
            failures.check(lines[0][1] <= exactness.TOLERANCE,
                           f"{name}: Thimble's logits are the reference's")
            failures.check(lines[-1][2] <= TOLERANCE,
                           f"{name}: with one epsilon llama.cpp is within {TOLERANCE} of Thimble, "
                           "in the median")
    perf.print_table(["difference of logits from the reference's", "positions", "largest", "median",
                      "same likeliest token"], rows)
    print("relative to the largest logit of the prompt. f32, bf16, q8_0: how the GGUF stores the "
          "matrices\nthat the model has in BF16; f32 and bf16 hold the same numbers. One epsilon: "
          f"rms_norm_eps is\n{SAME_EPSILON:g} for both engines, as it is always in the models' "
          "norms of latents and of keys.", flush=True)
    failures.exit()
