#!/usr/bin/env bash
# Installs the Debian packages that one of make's targets needs; where all are there it does nothing
# and says nothing.
# Usage: scripts/install-deps.sh run|test|bench|fuzz
set -euo pipefail

build=(make g++ cmake ninja-build pkg-config libhwy-dev liburing-dev libfmt-dev libutf8proc-dev
  libnuma-dev libxxhash-dev libcli11-dev nlohmann-json3-dev libedit-dev libboost1.81-dev
  libsimdjson-dev libssl-dev libzstd-dev zlib1g-dev)
fuzz=(clang libclang-rt-14-dev)
case "${1:-}" in
  run) packages=("${build[@]}") ;;
  bench) packages=("${build[@]}" libbenchmark-dev) ;;
  fuzz) packages=("${build[@]}" "${fuzz[@]}") ;;
  test) packages=("${build[@]}" libgtest-dev libgmock-dev clang-tidy clang-format python3) ;;
  *)
    echo "usage: $0 run|test|bench|fuzz" >&2
    exit 2
    ;;
esac

fail() {
  echo "install-deps: $1" >&2
  echo "Thimble is built on Debian 12 with these packages: ${packages[*]}" >&2
  echo "Where you have the same by other means, set THIMBLE_DEPS=skip." >&2
  exit 1
}

[[ "${THIMBLE_DEPS:-}" == skip ]] && exit 0
[[ -n "$(command -v dpkg-query)" && -n "$(command -v apt-get)" ]] ||
  fail "this is not a Debian system, so the packages cannot be checked or installed"

missing=()
installed=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' "${packages[@]}" \
  2>/dev/null || true)
for package in "${packages[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done
((${#missing[@]} == 0)) && exit 0

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    fail "missing: ${missing[*]}; installing needs root, and there is no sudo"
  as_root=(sudo)
fi
echo "Installing ${missing[*]}" >&2
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" </dev/null >&2; }
apt -qq update || fail "the package lists could not be fetched"
apt -qq install --yes --no-install-recommends "${missing[@]}" ||
  fail "not installed: ${missing[*]}"
