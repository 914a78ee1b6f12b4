#!/usr/bin/env bash
# Downloads Debian packages with all that they need, whatever of it is installed here: what is unpacked from them is the same on
# every machine. Left out are the essential packages with what those need, which every Debian has. libc is one of them: a program
# must find the libc of the machine that runs it, not another.
#
# usage: fetch.sh DIRECTORY PACKAGE...
#        fetch.sh --list PACKAGE... (prints the names of the packages that it would download)
set -euo pipefail
to=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/archives/partial"
touch "$work/status"
arch=$(dpkg --print-architecture)
# apt as on a machine that has nothing installed, and one architecture.
apt=(apt-get -qq -y -o Dir::State::status="$work/status" -o Dir::Cache="$work"
  -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o APT::Install-Recommends=false -o APT::Sandbox::User=root)
names() { "${apt[@]}" -s install "$@" | awk '$1 == "Inst" {print $2}' | sort; }

# Of usrmerge and usr-is-merged, which the essential packages leave to choose, the first would bring perl, which not every Debian has.
base='?or(?essential, ?exact-name(usr-is-merged))'
names "$base" >"$work/base"
names "$base" "$@" >"$work/all"
comm -13 "$work/base" "$work/all" >"$work/names"
if [ "$to" = --list ]; then
  cat "$work/names"
  exit
fi
cd "$to"
xargs "${apt[@]}" download <"$work/names"
