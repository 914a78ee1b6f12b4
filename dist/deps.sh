#!/usr/bin/env bash
# Installs boxgate's dependencies on Debian and Ubuntu. It does not change installed packages.
#
# usage: deps.sh [demo | demo-fleet | newcomer] (demo, demo-fleet: only what that demo needs; newcomer: also the network of `make newcomer`)
set -euo pipefail

# required command and the package that contains it
needs=(runc:runc mmdebstrap:mmdebstrap curl:curl)
# required file and the package that contains it
files=(
  /etc/ssl/certs/ca-certificates.crt:ca-certificates
  /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
)
if [ "${1:-}" = demo-fleet ]; then
  needs+=(nft:nftables ip:iproute2)
elif [ "${1:-}" != demo ]; then
  needs+=(
    nft:nftables ip:iproute2 crun:crun openssl:openssl git:git python3:python3 node:nodejs npm:npm gcc:gcc
    ping:iputils-ping ssh:openssh-client tmux:tmux systemd-analyze:systemd dpkg-deb:dpkg rpmbuild:rpm
  )
  files+=(/usr/include/stdio.h:libc6-dev)
fi
[ "${1:-}" != newcomer ] || needs+=(slirp4netns:slirp4netns)
missing=()
for need in "${needs[@]}"; do
  command -v "${need%%:*}" >/dev/null 2>&1 || missing+=("${need##*:}")
done
for need in "${files[@]}"; do
  [ -e "${need%%:*}" ] || missing+=("${need##*:}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "missing: ${missing[*]}; install them with this system's package manager" >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "missing: ${missing[*]}; run this with sudo, or: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
