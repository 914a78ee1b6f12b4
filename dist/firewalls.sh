#!/usr/bin/env bash
# Makes a root file system with firewalld and ufw for the tests beside them: the image debian with their packages.
# Installed on the machine, they would change its firewall rules.
set -euo pipefail
images=${1:?usage: dist/firewalls.sh IMAGE_DIR}
final=/var/lib/boxgate/firewalls-1
[ -e "$final/ready" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "making $final: run this with sudo" >&2
  exit 1
fi
mkdir -p "${final%/*}"
exec 9>"$final.lock"
flock 9
[ -e "$final/ready" ] && exit 0
echo "making a root file system with firewalld and ufw in $final (about a minute, once)"
root=$final.new
rm -rf "$root" "$final"
cp -a --reflink=auto "$(find "$images" -maxdepth 1 -name 'debian-[0-9]*' | sort -V | tail -n 1)/rootfs" "$root"
mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial" "$root/var/log/apt"

# The machine's apt downloads the packages through its mirrors and proxies, for the package state of the image.
fetch=(apt-get -qq -y -o Dir::State="$root/var/lib/apt" -o Dir::State::status="$root/var/lib/dpkg/status"
  -o Dir::Cache="$root/var/cache/apt" -o Dir::Etc::SourceList="$root/etc/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::TrustedParts="$root/etc/apt/trusted.gpg.d"
  -o APT::Sandbox::User=root -o APT::Install-Recommends=false)
packages="firewalld ufw dbus iptables nftables"
"${fetch[@]}" update
# shellcheck disable=SC2086 # a list
"${fetch[@]}" install --download-only $packages >/dev/null

# The image's dpkg installs them, without starting services, in a network namespace of its own.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
# shellcheck disable=SC2016 # for the inner shell
unshare --mount --pid --net --fork sh -c '
  mount -t proc proc "$1/proc" &&
  DEBIAN_FRONTEND=noninteractive LC_ALL=C exec chroot "$1" apt-get -qq -y -o APT::Install-Recommends=false --no-download -o Dpkg::Options::=--force-unsafe-io install $2
' sh "$root" "$packages" >"$root/log" 2>&1 || { tail -20 "$root/log" >&2; exit 1; }
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root/usr/sbin/policy-rc.d"
touch "$root/ready"
sync -f "$root"
mv "$root" "$final"
