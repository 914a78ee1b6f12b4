#!/usr/bin/env bash
# Downloads Debian packages with all their dependencies, installed or not, so that the unpacked files are the same on
# every machine. The essential packages and their dependencies are left out because every Debian has them. libc is one
# of them: a program must use the libc of the machine that runs it.
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
# apt as on a machine without installed packages, for one architecture.
apt=(apt-get -qq -y -o Dir::State::status="$work/status" -o Dir::Cache="$work"
  -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o APT::Install-Recommends=false -o APT::Sandbox::User=root)
names() { "${apt[@]}" -s install "$@" | awk '$1 == "Inst" {print $2}' | sort; }

# The essential packages accept usrmerge or usr-is-merged. usrmerge depends on perl, which not every Debian has.
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
