#!/usr/bin/env bash
# Unpacks the PostgreSQL server for one test, without installing it: installed, it would start and take its port.
# It does not run as root, so it is where others may read it.
set -euo pipefail
root=/var/cache/boxgate-postgres
compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null && exit 0 # this machine's own, which the test starts once more
compgen -G "$root/usr/lib/postgresql/*/bin/postgres" >/dev/null && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "the test of PostgreSQL needs $root: run this with sudo" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
trap 'rm -rf "$work" "$root.new"' EXIT
mkdir "$work/partial"
apt-get update -qq
# Also the libraries that this machine lacks.
apt-get -qq -y -o Dir::Cache::archives="$work" -o APT::Install-Recommends=false -o APT::Sandbox::User=root \
  install --download-only postgresql >/dev/null
rm -rf "$root.new"
mkdir -p -m 755 "$root.new"
for deb in "$work"/*.deb; do dpkg -x "$deb" "$root.new"; done
rm -rf "$root"
mv "$root.new" "$root"
