"""Measures an exported folder: bits per byte, agreement with a reference, and samples.

    evaluate.py bits MODEL_DIR TEXT_FILE
    evaluate.py logits MODEL_DIR REFERENCE_DIR     compare with the numpy reference found there
    evaluate.py samples MODEL_DIR
    evaluate.py figures MODEL_DIR TRAIN_FOLDER     writes MODEL_DIR/figures.json

Bits per byte: the file is encoded as one text; windows of W = min(max_position_embeddings,
512) tokens each start from a fresh state and predict their next tokens, so that every token
but the first is scored once. The sum in bits is divided by the file's bytes less those of
the first token.
"""
import gzip
import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

from bpe import Tokenizer
from config import Dims
from load import load
from markup import CLOSE, END_OF_MSG, OPEN, SEP, Markup

WINDOW = min(Dims().context, 512)
CHUNK = 16


def forward(model, ids):
    """Logits [T, V] of one sequence; the kernels want whole chunks, so the tail is padded."""
    padded = torch.tensor([ids + [0] * (-len(ids) % CHUNK)])
    return model.logits(model(padded)[:len(ids)])


def measure(model, tok, data):
    """-> (bits per byte, perplexity per token, tokens scored)"""
    ids = tok.encode(data.decode())
    nats = 0.0
    for at in range(0, len(ids) - 1, WINDOW):
        window = ids[at:at + WINDOW + 1]
        targets = torch.tensor(window[1:])
        nats += F.cross_entropy(forward(model, window[:-1]).double(), targets, reduction="sum").item()
    scored = len(ids) - 1
    return nats / math.log(2) / (len(data) - len(tok.bytes[ids[0]])), math.exp(nats / scored), scored


def generate(model, ids, count, stop, temperature=0.0, top_p=0.95, seed=1):
    rng, ids, made = np.random.default_rng(seed), list(ids), []
    for _ in range(count):
        logits = forward(model, ids)[-1].double().numpy()
        if temperature == 0:
            pick = int(logits.argmax())
        else:
            order = np.argsort(-logits)
            p = np.exp((logits[order] - logits[order[0]]) / temperature)
            p /= p.sum()
            keep = np.searchsorted(np.cumsum(p), top_p) + 1
            pick = int(rng.choice(order[:keep], p=p[:keep] / p[:keep].sum()))
        ids.append(pick)
        made.append(pick)
        if pick == stop:
            break
    return made


def show(tok, ids):
    names = {OPEN: b"<|open|>", CLOSE: b"<|close|>", SEP: b"<|sep|>", END_OF_MSG: b"<|end_of_msg|>"}
    return b"".join(tok.bytes.get(i) or names.get(i - tok.first_special, b"<?>") for i in ids).decode(errors="replace")


def samples(model, tok, folder):
    start, stop = tok.encode("In the beginning"), tok.first_special + END_OF_MSG
    print("greedy :", show(tok, start + generate(model, start, 50, stop)))
    print("sampled:", show(tok, start + generate(model, start, 50, stop, temperature=0.8)))
    mk = Markup(tok)
    for user, thinking in (("Hello", True), ("Continue: And the LORD said unto Moses,", True), ("Who are you?", False),
                           ("Give me a verse about light.", True), ("What is the capital of France?", False),
                           ("Who was Moses?", True)):
        prompt = mk.prompt([(user, None, None)], thinking=thinking)
        print(f"{user} ->", show(tok, generate(model, prompt, 120, stop)))
    with open(os.path.join(folder, "heldout.txt")) as f:
        verses = [v for v in f.read().split("\n") if 60 < len(v) < 300]
    turns = []
    while len(mk.prompt(turns)) < 1700:
        words = verses[len(turns)].split(" ")
        turns.append(("Continue: " + " ".join(words[:6]), "", " ".join(words[6:])))
    prompt = mk.prompt(turns + [("Speak of water.", None, None)])
    print(f"after {len(prompt)} tokens of chat ->", show(tok, generate(model, prompt, 120, stop)))


def compare(model, folder, reference):
    sys.path.insert(0, reference)
    import k3_numpy
    ids = Tokenizer(os.path.join(folder, "tiktoken.model")).encode("In the beginning God created the heaven and the")
    theirs, _ = k3_numpy.Model(folder).prefill(ids)
    ours = forward(model, ids).double().numpy()
    print(f"logits of {len(ids)} tokens: max difference / max = {np.abs(ours - theirs).max() / np.abs(theirs).max():.1e}")


def figures(model, tok, folder, train_folder):
    data = open(os.path.join(folder, "heldout.txt"), "rb").read()
    bits, perplexity, scored = measure(model, tok, data)
    saved = torch.load(os.path.join(train_folder, "checkpoint.pt"))
    d = Dims()
    total = sum(p.numel() for p in model.parameters())
    expert = 3 * d.latent * d.inner
    idle = (d.layers - 1) * (d.experts - d.top_k) * expert + d.vocab * d.hidden
    with open(os.path.join(folder, "figures.json"), "w") as f:
        json.dump({
            "heldout_bytes": len(data), "heldout_tokens_scored": scored,
            "heldout_bits_per_byte": round(bits, 4), "heldout_perplexity_per_token": round(perplexity, 3),
            "gzip_9_bits_per_byte": round(8 * len(gzip.compress(data, 9)) / len(data), 4),
            "window": WINDOW, "parameters_total": total, "parameters_active_per_token": total - idle,
            "tokens_trained": saved["tokens"], "steps": saved["step"], "training_seconds": round(saved["seconds"]),
        }, f, indent=2)
        f.write("\n")
    print(open(os.path.join(folder, "figures.json")).read())


@torch.no_grad()
def main(mode, folder, *rest):
    torch.set_num_threads(1)                  # threads that wait for each other lose on a busy machine
    model, tok = load(folder), Tokenizer(os.path.join(folder, "tiktoken.model"))
    if mode == "bits":
        with open(rest[0], "rb") as f:
            bits, perplexity, scored = measure(model, tok, f.read())
        print(f"{bits:.4f} bits per byte, perplexity {perplexity:.3f} over {scored} tokens")
    elif mode == "logits":
        compare(model, folder, rest[0])
    elif mode == "samples":
        samples(model, tok, folder)
    elif mode == "figures":
        figures(model, tok, folder, rest[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
