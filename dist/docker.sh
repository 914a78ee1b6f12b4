#!/usr/bin/env bash
# Unpacks a Docker daemon for one test. An installed daemon would start and change this machine's firewall rules. Its
# inactive dependencies are installed.
set -euo pipefail
root=/var/lib/boxgate/docker
missing=()
command -v iptables >/dev/null || missing+=(iptables)
ldconfig -p | grep -q 'libdevmapper\.so\.1\.02\.1' || missing+=(libdevmapper1.02.1)
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "the test beside Docker needs ${missing[*]}: run this with sudo" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
exec "$(dirname "$0")/unpack.sh" "$root" usr/sbin/dockerd docker.io containerd
