#!/usr/bin/env bash
# Runs every fuzzer of the fuzz preset for a while, from the inputs in fuzz/corpus/. What it finds on
# the way stays in build/fuzz/corpus/, an input that fails in build/fuzz/failures/.
# Usage: scripts/fuzz.sh [SECONDS_EACH]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
mkdir -p build/fuzz/failures
for source in fuzz/*_fuzz.cc; do
  name=$(basename "$source" _fuzz.cc)
  found=build/fuzz/corpus/$name
  mkdir -p "$found"
  echo "== fuzz: $name, ${seconds} s"
  "build/fuzz/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/failures/$name-" \
    "$found" "fuzz/corpus/$name" 2>&1 | sed '/^###### Recommended/,/^###### End/d'
done
