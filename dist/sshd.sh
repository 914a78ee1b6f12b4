#!/usr/bin/env bash
# Unpacks OpenSSH's server for the tests of SSH, without installing it: installed, it would start and take port 22.
set -euo pipefail
root=/var/lib/boxgate/openssh
[ -x "$root/usr/sbin/sshd" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "the tests of SSH need $root: run this with sudo" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
trap 'rm -rf "$work" "$root.new"' EXIT
mkdir "$work/partial"
apt-get update -qq || true # what was fetched before will do
# The server, and the library that a machine with its client may lack.
(cd "$work" && apt-get -qq -o APT::Sandbox::User=root download openssh-server libwrap0)
rm -rf "$root.new"
mkdir -p "$root.new"
for deb in "$work"/*.deb; do dpkg -x "$deb" "$root.new"; done
rm -rf "$root"
mv "$root.new" "$root"
