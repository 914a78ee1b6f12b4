#!/usr/bin/env bash
# Unpacks the peers of the benchmarks. Installed, they would start and listen. The report lists unavailable peers as
# missing.
set -euo pipefail
root=${1:-/var/lib/boxgate/peers}
here=$(dirname "$(realpath "$0")")
coredns=github.com/coredns/coredns@v1.15.0
packages=(haproxy nginx-light libnginx-mod-stream caddy squid-openssl unbound dnsmasq-base mitmproxy)

# unpack PACKAGE: unpacks a package and its dependencies
unpack() {
  local work
  work=$(mktemp -d)
  if "$here/fetch.sh" "$work" "$1"; then
    for deb in "$work"/*.deb; do dpkg -x "$deb" "$root"; done
    touch "$root/.have-$1"
  else
    echo "peer $1 cannot be had from this system's packages" >&2
  fi
  rm -rf "$work"
}

mkdir -p "$root/bin"
missing=()
for p in "${packages[@]}"; do [ -e "$root/.have-$p" ] || missing+=("$p"); done
if [ ${#missing[@]} -gt 0 ] && command -v apt-get >/dev/null; then
  echo "unpacking ${missing[*]} into $root"
  apt-get update -qq || true
  for p in "${missing[@]}"; do unpack "$p"; done
fi
if [ ! -x "$root/bin/coredns" ]; then
  echo "building ${coredns} into $root/bin"
  CGO_ENABLED=0 GOFLAGS= GOBIN="$root/bin" go install "$coredns" || echo "peer coredns cannot be built" >&2
fi
