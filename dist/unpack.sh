#!/usr/bin/env bash
# Unpacks Debian packages, with what they need (fetch.sh), for tests: installed, servers would start and take their ports. It does
# nothing if the directory has the program.
#
# usage: unpack.sh DIRECTORY PROGRAM PACKAGE... (PROGRAM is a pattern below the directory)
set -euo pipefail
root=$1 program=$2
shift 2
compgen -G "$root/$program" >/dev/null && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "the tests need $root: run this with sudo" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work" "$root.new"' EXIT
apt-get update -qq
"$(dirname "$0")/fetch.sh" "$work" "$@"
rm -rf "$root.new"
mkdir -p -m 755 "$root.new"
for deb in "$work"/*.deb; do dpkg -x "$deb" "$root.new"; done
if [ -d "$root.new/lib" ]; then # Debian 12 still has libraries there; tests look for all of them below usr
  cp -a "$root.new/lib/." "$root.new/usr/lib/"
  rm -r "$root.new/lib"
fi
compgen -G "$root.new/$program" >/dev/null || { echo "$* did not bring $root/$program" >&2; exit 1; }
rm -rf "$root"
mv "$root.new" "$root"
