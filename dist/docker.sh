#!/usr/bin/env bash
# Unpacks a Docker daemon for one test, without installing it: installed, it would start and change this machine's rules.
set -euo pipefail
root=/var/lib/boxgate/docker
[ -x "$root/usr/sbin/dockerd" ] && command -v iptables >/dev/null && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "the test beside Docker needs $root: run this with sudo" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends iptables libdevmapper1.02.1 libsystemd0 >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
(cd "$work" && apt-get download -qq docker.io containerd)
mkdir -p "$root"
for deb in "$work"/*.deb; do dpkg -x "$deb" "$root"; done
