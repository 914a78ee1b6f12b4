#!/usr/bin/env bash
# Builds the distributed artifacts (see internal/release) from a clone of the last commit, without uncommitted changes.
# With `verify` it builds everything that depends only on the sources a second time, in another directory and without
# the build cache, and compares. It reports its progress on standard error at least every five seconds.
#
# usage: release.sh DIRECTORY [verify] WHAT...
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
work=$(mktemp -d)
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT

# With the flags of `make build`, so that its compiled packages are used. The packager is a tool, so verifying compiles it
# once.
packager() { # CLONE
  (cd "$1" && CGO_ENABLED=0 GOFLAGS= dist/stage.sh "compiling the packager" \
    go build -trimpath -tags=http2legacy -ldflags=-s -o "$work/packager" ./internal/release >&2)
}

make_in() { # REPOSITORY CLONE DIRECTORY WHAT...
  umask "${mask:-022}"
  dist/stage.sh "copying the last commit" git -c advice.detachedHead=false clone -q --no-hardlinks "$1" "$2" >&2
  [ -x "$work/packager" ] || packager "$2"
  cd "$2" && "$work/packager" -out "$3" "${@:4}"
}

if [ "${1:-}" = verify ]; then
  shift
  (make_in "$PWD" "$work/one" "$work/first" "$@" >/dev/null)
  modules=$(go env GOMODCACHE)
  (GOCACHE="$work/cache" HOME="$work" GOMODCACHE="$modules" TZ=Asia/Kathmandu LC_ALL=C mask=077 \
    make_in "$work/one" "$work/somewhere/else/two" "$work/second" "$@" >/dev/null) # there may be another commit by then
  diff -r "$work/first" "$work/second"
  (cd "$work/first" && sha256sum -- *)
  echo "both times the same"
  exit 0
fi
make_in "$PWD" "$work/boxgate" "$out" "$@"
