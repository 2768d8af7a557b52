"""Training batches: windows of running text, and rows of whole dialogues."""
import os

import numpy as np
import torch

import corpus
from bpe import Tokenizer
from dialogues import Maker

SHARES = {"kjv": 0.58, "moby": 0.06, "sotu": 0.06, "dialogue": 0.30}
DIALOGUES = 14000


def build_cache(folder):
    """Tokenizes the texts and makes the dialogues, once."""
    tok = Tokenizer(os.path.join(folder, "tiktoken.model"))
    texts = {}
    for name in ("kjv", "moby", "sotu", "heldout"):
        with open(os.path.join(folder, "text", name + ".txt"), encoding="utf-8") as f:
            texts[name] = f.read()
        np.save(os.path.join(folder, name + ".npy"), np.array(tok.encode(texts[name]), np.int16))
    chapters, _ = corpus.split(corpus.read_chapters())
    maker = Maker(tok, chapters, texts["moby"], texts["sotu"], seed=7)
    ids, learn, starts = [], [], []
    for _ in range(DIALOGUES):
        starts.append(len(ids))
        a, b = maker.dialogue()
        ids += a
        learn += b
    np.savez(os.path.join(folder, "dialogue.npz"), ids=np.array(ids, np.int16), learn=np.array(learn, np.int8),
             starts=np.array(starts))
    print(f"{len(ids)} dialogue tokens, {sum(learn)} of them learned")


class Batches:
    def __init__(self, folder):
        self.text = {n: np.load(os.path.join(folder, n + ".npy")) for n in ("kjv", "moby", "sotu")}
        d = np.load(os.path.join(folder, "dialogue.npz"))
        self.ids, self.learn, self.starts = d["ids"], d["learn"], d["starts"]

    def row(self, rng, length):
        """-> (ids [length + 1], learn [length])"""
        kind = rng.choice(list(SHARES), p=list(SHARES.values()))
        if kind == "dialogue":
            at = self.starts[rng.integers(np.searchsorted(self.starts, len(self.ids) - length - 1))]
            return self.ids[at:at + length + 1], self.learn[at + 1:at + length + 1]
        text = self.text[kind]
        at = rng.integers(len(text) - length)
        return text[at:at + length + 1], np.ones(length, np.int8)

    def batch(self, key, rows, length):
        """The batch depends on the key (step, worker) alone, so that a run can be resumed."""
        rng = np.random.default_rng((20, *key))
        ids, learn = zip(*(self.row(rng, length) for _ in range(rows)))
        ids = torch.from_numpy(np.stack(ids).astype(np.int64))
        return ids[:, :-1], ids[:, 1:], torch.from_numpy(np.stack(learn).astype(np.float32))


if __name__ == "__main__":
    import sys
    build_cache(sys.argv[1])
