#!/usr/bin/env bash
# Runs clang-tidy, with the checks of .clang-tidy, on src/, headers too, or on the files given. All
# of src/ is read as the dev preset compiles it, several files at once, which takes a fifth of the
# time; single files as the release preset does. Needs the compile commands of that preset.
set -euo pipefail
cd "$(dirname "$0")/.."

tidy() {
  # One SIMD target stands for all: the kernels' source is the same for each. A unity source includes
  # others' .cc files by its nature.
  # Its standard error counts warnings in other people's headers: shown only if something is wrong.
  local report
  report=$(clang-tidy -p "$1" --quiet --header-filter="^$PWD/src/" \
    --checks=-bugprone-suspicious-include --extra-arg=-DHWY_COMPILE_ONLY_STATIC \
    --extra-arg=-Wno-unknown-warning-option "$2" 2>&1) || {
    printf '%s\n' "$report"
    return 1
  }
}
export -f tidy

if (($# > 0)); then
  commands=build/release
else
  commands=build/dev
  set -- "$commands"/src/CMakeFiles/*/Unity/*.cxx src/kernels/*.cc
fi
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" bash -c "tidy $commands \"\$0\""
