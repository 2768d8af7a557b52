#!/usr/bin/env bash
# Runs clang-tidy, with the checks of .clang-tidy, on src/ or on the files given.
# Needs the compile commands of the release preset.
set -euo pipefail
cd "$(dirname "$0")/.."

tidy() {
  # One SIMD target stands for all: the kernels' source is the same for each.
  # Its standard error counts warnings in other people's headers: shown only if something is wrong.
  local report
  report=$(clang-tidy -p build/release --quiet --extra-arg=-DHWY_COMPILE_ONLY_STATIC "$1" 2>&1) || {
    printf '%s\n' "$report"
    return 1
  }
}
export -f tidy

(($# > 0)) || set -- src/*/*.cc
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" bash -c "tidy \"\$0\""
