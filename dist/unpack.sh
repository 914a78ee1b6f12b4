#!/usr/bin/env bash
# Unpacks Debian packages, with what they need and this machine lacks, for tests: installed, servers would start and take
# their ports. It does nothing if the directory has the program.
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
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
trap 'rm -rf "$work" "$root.new"' EXIT
mkdir "$work/partial"
apt-get update -qq
# The packages themselves also where they are installed.
apt-get -qq -y -o Dir::Cache::archives="$work" -o APT::Install-Recommends=false -o APT::Sandbox::User=root \
  install --reinstall --download-only "$@" >/dev/null
rm -rf "$root.new"
mkdir -p -m 755 "$root.new"
for deb in "$work"/*.deb; do dpkg -x "$deb" "$root.new"; done
rm -rf "$root"
mv "$root.new" "$root"
compgen -G "$root/$program" >/dev/null || { echo "$* did not bring $root/$program" >&2; exit 1; }
