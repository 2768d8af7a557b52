#!/usr/bin/env python3
"""Fails on an #include in src/ that goes against the layers of docs/ARCHITECTURE.md, section 1.

usage: check_includes.py SRC_DIR [ARCHITECTURE.md]

With the page, its table must say what LAYERS says.
"""

import pathlib
import re
import sys

# What each folder may include: folders or files of src/, and headers of other libraries. Standard
# and system headers are allowed everywhere.
LAYERS = {
    "base": ([], ["fmt/"]),
    "json": (["base"], ["fmt/", "nlohmann/"]),
    "codec": (["base"], []),
    "memory": (["base"], ["fmt/", "numa.h", "numaif.h"]),
    "io": (["base"], ["fmt/", "liburing.h"]),
    "kernels": (["base", "codec"], ["hwy/"]),
    "format": (
        ["base", "json", "codec", "io"],
        ["fmt/", "xxhash.h", "nlohmann/", "openssl/", "simdjson.h"],
    ),
    "model": (
        ["base", "codec", "memory", "kernels", "format/model_config.h", "format/tensor_role.h"],
        [],
    ),
    "residency": (["base", "codec", "memory", "io", "kernels", "format", "model"], []),
    "text": (["base", "json", "format", "io"], ["fmt/", "utf8proc.h", "xxhash.h"]),
    "chat": (["base", "json", "text"], ["fmt/", "nlohmann/"]),
    "grammar": (["base", "json", "text", "chat"], ["fmt/", "utf8proc.h"]),
    "engine": (
        ["base", "codec", "memory", "io", "kernels", "format", "model", "residency", "text"],
        ["fmt/"],
    ),
    "dialogue": (["base", "text", "chat", "engine"], ["fmt/", "nlohmann/"]),
    "measure": (
        ["base", "codec", "memory", "io", "kernels", "format", "residency/forecast.h", "engine"],
        [],
    ),
    "server": (
        ["base", "json", "memory", "text", "chat", "grammar", "engine"],
        ["boost/", "fmt/", "nlohmann/", "zlib.h", "zstd.h"],
    ),
    "pack": (["base", "codec", "memory", "io", "kernels", "format"], ["fmt/", "nlohmann/"]),
    "outlook": (["base", "memory", "io", "format", "engine", "measure"], ["fmt/", "nlohmann/"]),
    "terminal": (
        ["base", "memory", "io", "chat", "engine", "dialogue"],
        ["fmt/", "histedit.h"],
    ),
    "doctor": (
        ["base", "memory", "io", "format", "engine", "measure", "outlook", "terminal"],
        ["fmt/", "nlohmann/"],
    ),
    "cli": (
        ["base", "memory", "io", "format", "text", "chat", "engine", "dialogue", "measure", "pack",
         "outlook", "terminal", "doctor", "server"],
        ["CLI/", "fmt/", "nlohmann/"],
    ),
}

# The names of the libraries in the page's table.
LIBRARIES = {
    "CLI/": "CLI11",
    "boost/": "Boost",
    "fmt/": "fmt",
    "histedit.h": "libedit",
    "hwy/": "Highway",
    "liburing.h": "liburing",
    "nlohmann/": "nlohmann-json",
    "numa.h": "libnuma",
    "numaif.h": "libnuma",
    "openssl/": "libcrypto",
    "simdjson.h": "simdjson",
    "utf8proc.h": "utf8proc",
    "xxhash.h": "xxHash",
    "zlib.h": "zlib",
    "zstd.h": "zstd",
}
TABLE_ROW = re.compile(r"\| ([a-z]+) \| ([^|]+) \|")

# The C++ library has headers without a dot; these are C's and the system's.
SYSTEM = re.compile(r"(sys|linux|asm|arpa|net|netinet)/[a-z0-9_]+\.h"
                    r"|(dlfcn|errno|fcntl|langinfo|malloc|netdb|poll|pthread|sched|signal|stdint|stdio|stdlib|string|strings|time"
                    r"|unistd)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:(["<])([^">]+)[">]|(\S+))')
SOURCES = {".cc", ".h"}


def covers(allowed, header):
    """Whether `allowed`, a folder, a prefix that ends in '/' or a file, covers `header`."""
    return header == allowed or header.startswith(allowed.rstrip("/") + "/")


def complaint(folder, header):
    """Why a file of `folder` must not include `header`, or None if it may."""
    inner, libraries = LAYERS[folder]
    if "/" in header and header.split("/")[0] in LAYERS:
        if any(covers(allowed, header) for allowed in [folder, *inner]):
            return None
        return f"{folder}/ may include {', '.join([folder, *inner])} of src/"
    if any(covers(allowed, header) for allowed in libraries):
        return None
    if re.fullmatch(r"[a-z_0-9]+", header) or SYSTEM.fullmatch(header):
        return None
    others = ", ".join(libraries) if libraries else "none"
    return f"{folder}/ may include no such header; of other libraries: {others}"


def table_row(folder):
    """What the page's table says of a folder, by LAYERS."""
    inner, libraries = LAYERS[folder]
    parts = [", ".join(inner), ", ".join(sorted({LIBRARIES[one] for one in libraries}))]
    return "; ".join(part for part in parts if part) or "nothing"


def normal(cell):
    """A cell of the table without remarks in brackets, its libraries in alphabetical order."""
    cell = re.sub(r" \([^)]*\)", "", cell)
    inner, separator, libraries = cell.partition("; ")
    return inner + separator + ", ".join(sorted(libraries.split(", ")))


def check_table(page):
    """The differences between LAYERS and the table of `page`."""
    rows = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        match = TABLE_ROW.fullmatch(line)
        if match and match.group(1) != "folder":
            rows[match.group(1)] = normal(match.group(2))
    errors = [f"{page}: a row for {folder}/, which is no layer" for folder in rows.keys() - LAYERS]
    for folder in LAYERS:
        expected = normal(table_row(folder))
        if rows.get(folder) != expected:
            errors.append(f"{page}: {folder}: expected the row '{expected}', found "
                          f"'{rows.get(folder, 'none')}'")
    return errors


def check_file(path, folder, errors):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header, macro = match.group(2), match.group(3)
        reason = "a macro hides what is included" if macro else complaint(folder, header)
        if reason:
            errors.append(f"{path}:{number}: {header or macro}: {reason}")


def check(src):
    """The complaints about the tree `src`, one line each, and the number of files looked at."""
    errors = []
    files = 0
    for path in sorted(path for path in src.rglob("*") if path.is_file()):
        parts = path.relative_to(src).parts
        if path.name in ("CMakeLists.txt", ".clang-tidy", "page.html"):
            continue
        if len(parts) != 2 or parts[0] not in LAYERS:
            errors.append(f"{path}: no layer of this name: LAYERS in {pathlib.Path(__file__).name}")
        elif path.suffix not in SOURCES:
            errors.append(f"{path}: neither {' nor '.join(sorted(SOURCES))}")
        else:
            files += 1
            check_file(path, parts[0], errors)
    return errors, files


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    errors, files = check(pathlib.Path(arguments[0]))
    if files == 0:
        errors.append(f"{arguments[0]}: no sources here")
    if len(arguments) == 2:
        errors += check_table(pathlib.Path(arguments[1]))
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
