"""Byte-level BPE over Kimi K3's pre-tokenizer: trainer and encoder.

The trainer counts pre-tokenized pieces once and then works on the counts, updating only
the pieces that hold the merged pair, so a few thousand merges take seconds in Python.

    bpe.py train OUT.tiktoken RANKS FILE[:WEIGHT] ...
"""
import base64
import collections
import heapq
import sys

import regex

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
PATTERN = regex.compile("|".join([
    r"[\p{Han}]+",
    _LEAD + _UPPER + "*" + _LOWER + "+" + _SUFFIX,
    _LEAD + _UPPER + "+" + _LOWER + "*" + _SUFFIX,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
]), regex.V1)


def pieces(text):
    return PATTERN.findall(text)


def train(weighted_texts, n_ranks):
    """[(text, weight)] -> list of token bytes, index = rank: the 256 bytes, then merges."""
    counts = collections.Counter()
    for text, weight in weighted_texts:
        for piece, n in collections.Counter(pieces(text)).items():
            counts[piece.encode()] += n * weight
    words = [[bytes([b]) for b in w] for w in counts]
    freq = list(counts.values())
    pair_count, holders = collections.Counter(), collections.defaultdict(set)
    for i, w in enumerate(words):
        for pair in zip(w, w[1:]):
            pair_count[pair] += freq[i]
            holders[pair].add(i)
    heap = [(-n, pair) for pair, n in pair_count.items()]
    heapq.heapify(heap)
    ranks = [bytes([b]) for b in range(256)]
    known = set(ranks)
    while len(ranks) < n_ranks:
        n, pair = heapq.heappop(heap)
        if -n != pair_count[pair]:                  # stale entry: put the true count back
            if pair_count[pair] > 0:
                heapq.heappush(heap, (-pair_count[pair], pair))
            continue
        merged = pair[0] + pair[1]
        if merged not in known:                     # two pairs may spell the same token
            known.add(merged)
            ranks.append(merged)
        grown = set()
        for i in holders.pop(pair):
            old, w = words[i], _merge(words[i], pair, merged)
            for p in zip(old, old[1:]):
                pair_count[p] -= freq[i]
            for p in zip(w, w[1:]):
                pair_count[p] += freq[i]
                holders[p].add(i)
                grown.add(p)
            words[i] = w
        for p in grown:
            heapq.heappush(heap, (-pair_count[p], p))
    return ranks


def _merge(word, pair, merged):
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(merged)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def save(path, ranks):
    with open(path, "w", encoding="ascii") as f:
        for rank, token in enumerate(ranks):
            f.write(f"{base64.b64encode(token).decode()} {rank}\n")


class Tokenizer:
    """Text-mode encoder for a rank file: whole piece first, else lowest-rank merges."""

    def __init__(self, path):
        self.ranks = {}
        with open(path, encoding="ascii") as f:
            for line in f:
                token, rank = line.split()
                self.ranks[base64.b64decode(token)] = int(rank)
        self.bytes = {i: t for t, i in self.ranks.items()}
        self.first_special = len(self.ranks)
        self._cache = {}

    def encode(self, text):
        ids = []
        for piece in pieces(text):
            got = self._cache.get(piece)
            if got is None:
                got = self._cache[piece] = self._encode_piece(piece.encode())
            ids.extend(got)
        return ids

    def _encode_piece(self, data):
        if data in self.ranks:
            return [self.ranks[data]]
        parts = [bytes([b]) for b in data]
        while len(parts) > 1:
            best = min(range(len(parts) - 1),
                       key=lambda i: self.ranks.get(parts[i] + parts[i + 1], len(self.ranks)))
            if parts[best] + parts[best + 1] not in self.ranks:
                break
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        return [self.ranks[p] for p in parts]

    def decode(self, ids):
        return b"".join(self.bytes.get(i, b"") for i in ids)


def main(out, n_ranks, *files):
    texts = []
    for spec in files:
        name, _, weight = spec.partition(":")
        texts.append((open(name, encoding="utf-8").read(), int(weight or 1)))
    ranks = train(texts, int(n_ranks))
    save(out, ranks)
    tok = Tokenizer(out)
    for (text, _), spec in zip(texts, files):
        n = len(tok.encode(text))
        print(f"{spec}: {n} tokens, {len(text.encode()) / n:.3f} bytes a token")


if __name__ == "__main__":
    main(*sys.argv[2:])
