#!/usr/bin/env bash
# Has three agents from npm, Claude Code, Codex and opencode, each do a task with a tool: read a file,
# then copy it to another. They talk to Thimble's server with a script in place of a model, since their
# prompts, of 10,000 tokens and more, are longer than what the small model holds.
# Usage: tests/clients/agents.sh AGENT_SERVER WORK_DIR
# Exit code 77, and the reason, where node or the packages (1.1 GB) cannot be had: the test is then
# skipped.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
agent_server=$(realpath "$1")
work=$2

source "$root/tests/clients/npm.sh"
mkdir -p "$work/npm"
work=$(realpath "$work")
cp "$root/tests/clients/agents.json" "$work/npm/package.json"
cd "$work/npm"
npm_install 300 agents

server=
trap '[[ -z "$server" ]] || kill "$server" 2>/dev/null || true' EXIT
failed=0

# try NAME TOOL KEY COMMAND...: runs the agent by COMMAND, in a folder and a home of its own. The
# shell's tool is TOOL, with the command as its argument KEY. BASE in a configuration is the server.
try() {
  local name=$1 tool=$2 key=$3 folder=$work/$1 secret=$RANDOM$RANDOM
  shift 3
  rm -rf "$folder"
  mkdir -p "$folder/home" "$folder/task"
  echo "$secret" >"$folder/task/secret"
  "$agent_server" "$root/models/mini" "$tool" "$key" 'cat secret' 'cp secret copy; echo copied' \
    'cat copy' >"$folder/server.log" 2>&1 &
  server=$!
  local base=
  for _ in $(seq 100); do
    base=$(grep -m 1 '^http' "$folder/server.log") && break
    sleep 0.1
  done
  "configure_$name" "$base" "$folder"
  (cd "$folder/task" && git init --quiet && HOME=$folder/home XDG_CONFIG_HOME=$folder/home/.config \
    XDG_DATA_HOME=$folder/home/.data XDG_CACHE_HOME=$folder/home/.cache timeout 120 \
    "$work/npm/node_modules/.bin/$name" "$@" </dev/null >"$folder/agent.log" 2>&1) ||
    echo "$name ended with $?"
  kill "$server"
  wait "$server" 2>/dev/null || true
  server=
  if [[ $(cat "$folder/task/copy" 2>/dev/null) == "$secret" ]] &&
    grep -q '3 of 3 thoughts came back, 3 prompts went on' "$folder/agent.log"; then
    echo "ok    $name: three calls of a tool, and the answer"
  else
    echo "FAIL  $name; see $folder/agent.log and server.log:"
    tail -n 20 "$folder/server.log" "$folder/agent.log"
    failed=1
  fi
}

# Settings of Claude Code are variables of its environment.
configure_claude() {
  export ANTHROPIC_BASE_URL=$1 ANTHROPIC_AUTH_TOKEN=none API_TIMEOUT_MS=3600000
  export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
}

configure_codex() {
  mkdir -p "$2/home/.codex"
  cat >"$2/home/.codex/config.toml" <<END
model = "scripted"
model_provider = "thimble"
model_context_window = 65536
[model_providers.thimble]
name = "Thimble"
base_url = "$1/v1"
wire_api = "responses"
stream_idle_timeout_ms = 1500
stream_max_retries = 0
END
}

configure_opencode() {
  cat >"$2/task/opencode.json" <<END
{"model": "thimble/scripted", "provider": {"thimble": {
  "npm": "@ai-sdk/openai-compatible", "name": "Thimble",
  "options": {"baseURL": "$1/v1", "timeout": false},
  "models": {"scripted": {"name": "scripted", "reasoning": true,
    "interleaved": {"field": "reasoning_content"}, "limit": {"context": 65536, "output": 8192}}}}}}
END
}

task="Copy the file secret to copy."
try claude Bash command -p "$task" --model scripted --allowedTools Bash
try codex exec_command cmd exec --skip-git-repo-check -s danger-full-access "$task"
try opencode bash command run "$task"
exit "$failed"
