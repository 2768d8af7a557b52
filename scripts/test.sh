#!/usr/bin/env bash
# Everything that must hold before a change lands, cheapest first, up to the first failure: format,
# include directions, the tests of the release build, the same under AddressSanitizer and
# UndefinedBehaviorSanitizer, those of the folders that know threads under ThreadSanitizer,
# clang-tidy. The tests also replay the fuzzers' inputs. Their results go to build/test-results/: a
# JUnit file of ctest for each preset, and for the presets with sanitizers GoogleTest's own files.
set -euo pipefail
cd "$(dirname "$0")/.."

results=$PWD/build/test-results
rm -rf "$results"
mkdir -p "$results"

current=
finish() {
  local status=$?
  ((status == 0)) || echo "== FAILED: $current" >&2
  exit "$status"
}
trap finish EXIT

step() {
  current=$1
  shift
  local start=$SECONDS
  echo "== $current"
  "$@"
  echo "== $current: fine, $((SECONDS - start)) s"
}

# ThreadSanitizer's map of the address space does not fit every kernel's randomised one.
fixed_addresses=()
if setarch --addr-no-randomize true 2>/dev/null; then
  fixed_addresses=(setarch --addr-no-randomize)
fi

# test_preset PRESET [FOLDER...]: all tests, or those of some folders of tests/.
test_preset() {
  local preset=$1 only=()
  shift
  cmake --preset "$preset" --log-level=WARNING
  if (($# > 0)); then
    cmake --build --preset "$preset" --target "${@/%/_tests}"
    only=(--tests-regex "^($(IFS='|' && echo "$*"))/")
  else
    cmake --build --preset "$preset"
  fi
  rm -rf "build/$preset/gtest"
  local status=0
  "${fixed_addresses[@]}" ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error \
    "${only[@]}" --output-junit "$results/$preset.xml" || status=$?
  [[ ! -d build/$preset/gtest ]] || mv "build/$preset/gtest" "$results/$preset"
  return "$status"
}

step "format" scripts/format.sh --check
step "include directions" python3 scripts/check_includes.py src docs/ARCHITECTURE.md
step "release build and tests" test_preset release
step "address and undefined-behaviour sanitizers" test_preset dev
step "thread sanitizer" test_preset tsan base io model residency engine server
step "clang-tidy" scripts/tidy.sh
echo "== all fine, ${SECONDS} s"
