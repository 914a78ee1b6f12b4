#!/usr/bin/env bash
# Unpacks Knot DNS for one test, without installing it: installed, it would start and take port 53.
set -euo pipefail
root=/var/lib/boxgate/knot
[ -x "$root/usr/sbin/knotd" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "the test of DNS-01 needs $root: run this with sudo" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
trap 'rm -rf "$work" "$root.new"' EXIT
mkdir "$work/partial"
apt-get update -qq
# Also the libraries that this machine lacks; and knot itself, should it be installed.
apt-get -qq -y -o Dir::Cache::archives="$work" -o APT::Install-Recommends=false -o APT::Sandbox::User=root \
  install --reinstall --download-only knot >/dev/null
rm -rf "$root.new"
mkdir -p "$root.new"
for deb in "$work"/*.deb; do dpkg -x "$deb" "$root.new"; done
rm -rf "$root"
mv "$root.new" "$root"
