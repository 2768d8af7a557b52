#!/usr/bin/env bash
# Runs the public clients from npm against `thimble serve` with the embedded model, then their
# accumulators against SCRIPTED_SERVER.
# Usage: tests/clients/run.sh THIMBLE WORK_DIR SCRIPTED_SERVER
# Exit code 77, and the reason, where node or the packages cannot be had: the test is then skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
thimble=$(realpath "$1")
work=$2
scripted=$(realpath "$3")

source "$here/npm.sh"
mkdir -p "$work"
cp "$here/package.json" "$here"/*.mjs "$work"
cd "$work"
npm_install 180 clients

key=test-key
: >server.log  # which the server's shell may not have made yet when it is first read
"$thimble" serve --port 0 --api-key "$key" --memory 512M -t 1 2>server.log &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
for _ in $(seq 100); do
  base=$(sed -n 's|.* on \(http://[^/]*\)/v1.*|\1|p' server.log)
  [[ -n "$base" ]] && break
  sleep 0.1
done
[[ -n "$base" ]] || { cat server.log; exit 1; }
timeout 240 node clients.mjs "$base" "$key"
if chromium=$(command -v chromium); then
  timeout 240 node page.mjs "$base" "$key" "$chromium"
else
  echo "skipped: the page, since there is no chromium"
fi

kill -TERM "$server"
wait "$server" || { echo "the server did not end cleanly"; exit 1; }

: >scripted.log
"$scripted" "$here/../../models/mini" >scripted.log 2>&1 &
server=$!
base=
for _ in $(seq 100); do
  base=$(grep -m 1 '^http' scripted.log) && break
  sleep 0.1
done
[[ -n "$base" ]] || { cat scripted.log; exit 1; }
timeout 240 node matrix.mjs "$base"
