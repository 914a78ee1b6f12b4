#!/usr/bin/env bash
# Unpacks Debian packages with their dependencies (fetch.sh) for tests. Installed servers would start and occupy their
# ports. It does nothing if the directory contains the program.
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
if [ -d "$root.new/lib" ]; then # Debian 12 still has libraries in /lib; tests look for them in /usr/lib
  cp -a "$root.new/lib/." "$root.new/usr/lib/"
  rm -r "$root.new/lib"
fi
compgen -G "$root.new/$program" >/dev/null || { echo "$* did not bring $root/$program" >&2; exit 1; }
rm -rf "$root"
mv "$root.new" "$root"
