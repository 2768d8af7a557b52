#!/usr/bin/env bash
# Formats every C++ file; with --check only says which ones are not formatted, and fails.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
[[ "${1:-}" == --check ]] && mode=(--dry-run -Werror)
find src tests fuzz bench tools -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cpp' \) -print0 |
  xargs -0 -n 8 -P "$(nproc)" clang-format "${mode[@]}"
