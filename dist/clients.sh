#!/usr/bin/env bash
# Builds the image of the client tests: the debian image with clients packaged by Debian and SDKs from the npm registry.
set -euo pipefail
images=${1:?usage: dist/clients.sh IMAGE_DIR}
base=$(find "$images" -maxdepth 1 -name "debian-[0-9]*" | sort -V | tail -n 1)/rootfs
final=$images/debian-clients-7
[ -e "$final/rootfs/opt/ready" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "making $final: run this with sudo" >&2
  exit 1
fi
mkdir -p "$images"
exec 9>"$images/.debian-clients.lock"
flock 9
[ -e "$final/rootfs/opt/ready" ] && exit 0
echo "adding clients to the debian image (about three minutes, once)"
work=$images/.debian-clients.building
rm -rf "$work" "$final"
mkdir -p "$work"
cp -a --reflink=auto "$base" "$work/rootfs"
root=$work/rootfs

# The machine's apt downloads the packages through its mirrors and proxies, for the package state of the image.
fetch=(apt-get -qq -y -o Dir::State="$root/var/lib/apt" -o Dir::State::status="$root/var/lib/dpkg/status"
  -o Dir::Cache="$root/var/cache/apt" -o Dir::Etc::SourceList="$root/etc/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::TrustedParts="$root/etc/apt/trusted.gpg.d"
  -o APT::Sandbox::User=root -o APT::Install-Recommends=false)
packages=(wget gnutls-bin python3-requests python3-pip-whl php-cli php-curl ruby liblwp-protocol-https-perl
  default-jre-headless libnss3-tools libgit2-1.5 libllvm14 awscli python3-boto3 gh git-lfs skopeo twine postgresql-client)
rust=(cargo rustc libstd-rust-1.63) # separately, without dependencies: fetching a crate needs no C compiler
mkdir -p "$root/var/cache/apt/archives/partial" "$work/rust"
"${fetch[@]}" update
"${fetch[@]}" install --download-only "${packages[@]}" >/dev/null
(cd "$work/rust" && "${fetch[@]}" download "${rust[@]}")

# The image's dpkg installs them, with its own /proc, which Java needs, and without starting services.
mkdir -p "$root/usr/share/man/man1" # Java's packages create links there
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
printf 'force-unsafe-io\n' >"$root/etc/dpkg/dpkg.cfg.d/clients"
# shellcheck disable=SC2016 # for the inner shell
unshare --mount --pid --net --fork sh -c '
  mount -t proc proc "$1/proc" &&
  DEBIAN_FRONTEND=noninteractive LC_ALL=C exec chroot "$1" apt-get -qq -y -o APT::Install-Recommends=false --no-download install ${2}
' sh "$root" "${packages[*]}" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
for deb in "$work"/rust/*.deb; do dpkg -x "$deb" "$root"; done
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$root/opt/clients" \
  undici@7.30.2 openai@4.104.0 @anthropic-ai/sdk@0.39.0 @google-cloud/storage@7.19.0 @azure/arm-resources-subscriptions@2.1.0
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root/usr/sbin/policy-rc.d" "$root/etc/dpkg/dpkg.cfg.d/clients" "$work/rust" "$work/log"
mkdir -p "$root/var/lib/apt/lists/partial" "$root/var/cache/apt/archives/partial"

chmod 700 "$work" # nobody may run set-user-ID programs of an image
touch "$root/opt/ready"
sync -f "$work"
mv "$work" "$final"
