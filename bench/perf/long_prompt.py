#!/usr/bin/env python3
"""A prompt of 100,000 tokens in 4 GB and in a tenth of it: k3-small, random weights, its limit of
positions raised. Tokens a second, VmHWM, and whether both budgets give the same text."""

import json
import random
import shutil

import perf

MODEL_BYTES = 90e6
RANKS = 3840  # of 4,096 ids; the others are reserved for special tokens
LETTERS = "etoinshrdlu "  # no word of the vocabulary is made of them: each is a token


def make_model(options, context):
    """k3-small with room for `context` tokens, and a tokenizer."""
    model = options.dir / "k3-small-long"
    perf.make_model(options.thimble, model, ["--arch", "k3-small"], MODEL_BYTES)
    config = json.loads((model / "config.json").read_text())
    config.get("text_config", config)["max_position_embeddings"] = context
    (model / "config.json").write_text(json.dumps(config))
    perf.write_tokenizer(model, RANKS)
    return model


def main():
    parser = perf.parser(__doc__)
    parser.add_argument("--tokens", type=int, default=100_000, help="of the prompt")
    parser.add_argument("--memory", nargs="*", default=["4G", "400M"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="leave the model there")
    options = parser.parse_args()
    perf.print_head(f"a prompt of {options.tokens:,} tokens, k3-small", options.thimble)
    answer = 16
    model = make_model(options, options.tokens + answer)
    prompt = options.dir / "prompt.txt"
    letters = random.Random(1)
    prompt.write_text("".join(letters.choices(LETTERS, k=options.tokens)))
    failures, rows, texts = perf.Failures(), [], set()
    for memory in options.memory:
        limit = perf.parse_size(memory)
        run = perf.Run(options.thimble, [
            "run", "-m", model, "-f", prompt, "-n", answer, "--out-ids", "--memory", memory, "-t",
            options.threads], limit=limit).need()
        stats = run.stats
        rows.append([memory, f"{stats['prompt_tokens']:,}", f"{stats['prefill_s']:.0f}",
                     f"{stats['prefill_tokens_per_s']:.0f}", perf.size(run.peak)])
        texts.add(tuple(stats["ids"]))
        failures.check(stats["prompt_tokens"] == options.tokens, "all tokens were read")
        failures.check(run.peak <= limit, f"VmHWM {run.peak:,} of {limit:,} bytes")
    perf.print_table(["memory", "tokens", "s", "tokens/s", "VmHWM"], rows)
    failures.check(len(texts) == 1, "every budget gives the same text")
    prompt.unlink()
    if not options.keep:
        shutil.rmtree(model)
    failures.exit()


if __name__ == "__main__":
    main()
