#!/usr/bin/env bash
# Installs a build into an empty folder and runs the program from there.
# Usage: install_test.sh CMAKE BUILD_DIR SOURCE_DIR
set -euo pipefail

prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
"$1" --install "$2" --prefix "$prefix" >/dev/null

fail() {
  echo "$1" >&2
  exit 1
}
"$prefix/bin/thimble" --version
[[ -f "$prefix/share/bash-completion/completions/thimble" ]] || fail "no bash completion"
diff -r "$3/models/mini" "$prefix/share/thimble/models/mini"
text=$("$prefix/bin/thimble" run -p "In the beginning" -n 8)
[[ -n "$text" ]] || fail "the installed model wrote nothing"
echo "$text"
