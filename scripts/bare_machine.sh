#!/usr/bin/env bash
# What a newcomer's machine does: a root of Debian 12 with nothing but what debootstrap calls minbase,
# git and make; in it a clone of this checkout as it is committed, and `make run` and `make test`.
# usage: scripts/bare_machine.sh [TARGET...]    make's targets; run and test unless given
# Ends with 77, and says so, where it cannot be done: it needs root and debootstrap.
#
# All mounts are made in a mount namespace of its own, so that they end with it, and removing the
# root afterwards cannot reach what was mounted. /dev is a file system of its own, with nodes of its
# own: whatever replaces or writes them leaves those of this machine alone.
set -euo pipefail

skip() {
  echo "bare_machine: SKIPPED: $1" >&2
  exit 77
}

# Packages come from where this machine's own do.
mirror() {
  # shellcheck disable=SC2016  # apt's own variables
  apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(SITE)' 'Created-By: Packages' |
    awk '$1 == "bookworm" && $2 == "main" { print $3; exit }'
}

# ---- inside the namespaces, where $root is the root to be

mount_system() {
  mkdir -p "$root/dev" "$root/proc" "$root/sys"
  mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
  mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
  mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
  local node
  for node in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "$root/dev/${node%:*}" c 1 "${node#*:}"
  done
  mknod -m 666 "$root/dev/tty" c 5 0
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s fd/0 "$root/dev/stdin"
  ln -s fd/1 "$root/dev/stdout"
  ln -s fd/2 "$root/dev/stderr"
  mkdir "$root/dev/pts" "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,nosuid,noexec devpts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
}

# What a package needs to be fetched as this machine fetches it; no passwords.
copy_network_settings() {
  local path
  rm -rf "$root/etc/apt/sources.list.d"
  for path in apt/sources.list apt/sources.list.d apt/apt.conf.d apt/trusted.gpg.d apt/keyrings \
    resolv.conf hosts ssl/certs; do
    [[ -e /etc/$path ]] || continue
    mkdir -p "$root/etc/$(dirname "$path")"
    cp -rL "/etc/$path" "$root/etc/$(dirname "$path")/" 2>/dev/null || true  # dangling links
  done
}

build_root() {
  local include=git,make
  [[ $1 != https:* ]] || include+=,ca-certificates
  debootstrap --variant=minbase --include="$include" bookworm "$root" "$1" >"$root.log" 2>&1 || {
    tail -n 20 "$root.log" >&2
    echo "bare_machine: debootstrap failed" >&2
    return 1
  }
}

in_root() {
  local kept=() name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -z ${!name:-} ]] || kept+=("$name=${!name}")
  done
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    "${kept[@]}" chroot "$root" /bin/sh -ec "$1" </dev/null
}

inside() {
  root=$1 checkout=$2 mirror=$3
  shift 3
  local target start report=
  build_root "$mirror"
  umount "$root/proc" 2>/dev/null || true  # debootstrap's
  mount_system
  copy_network_settings
  git -c safe.directory='*' -C "$checkout" bundle create --quiet "$root/root/thimble.bundle" HEAD
  if [[ -d $checkout/../shared ]]; then
    mkdir "$root/root/shared"
    mount --bind "$checkout/../shared" "$root/root/shared"
    mount -o remount,bind,ro "$root/root/shared"
  fi
  in_root 'cd; git -c advice.detachedHead=false clone --quiet thimble.bundle thimble'
  for target in "$@"; do
    start=$SECONDS
    echo "bare_machine: make $target"
    in_root "cd ~/thimble; make $target" || {
      echo "bare_machine: FAILED: make $target, after $((SECONDS - start)) s" >&2
      return 1
    }
    report+="${report:+, }make $target $((SECONDS - start)) s"
  done
  echo "bare_machine: fine: $report"
}

if [[ ${1:-} == --inside ]]; then
  shift
  inside "$@"
  exit
fi

((EUID == 0)) || skip "it needs root"
command -v debootstrap >/dev/null || skip "it needs debootstrap (apt-get install debootstrap)"
unshare --mount --pid --fork true 2>/dev/null || skip "it needs namespaces of its own (unshare)"
from=$(mirror)
[[ -n $from ]] || skip "apt knows no mirror of Debian 12 (bookworm), or has not fetched its lists"

checkout=$(cd "$(dirname "$0")/.." && pwd)
(($# > 0)) || set -- run test
work=$(mktemp -d "${TMPDIR:-/tmp}/bare-machine.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 143' TERM INT HUP  # so that the line above takes effect
mkdir "$work/root"
unshare --mount --propagation private --pid --fork --kill-child \
  "$checkout/scripts/bare_machine.sh" --inside "$work/root" "$checkout" "$from" "$@"
