#!/usr/bin/env python3
"""Writes the example program of docs/API.md to a file, if it differs from what the file holds.

usage: api_example.py API.md OUTPUT.cc
"""

import pathlib
import re
import sys


def main():
    page, output = map(pathlib.Path, sys.argv[1:])
    examples = re.findall(r"```cpp\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    programs = [example for example in examples if "int main(" in example]
    if len(programs) != 1:
        sys.exit(f"{page}: {len(programs)} example programs, expected 1")
    if not output.exists() or output.read_text(encoding="utf-8") != programs[0]:
        output.write_text(programs[0], encoding="utf-8")


if __name__ == "__main__":
    main()
