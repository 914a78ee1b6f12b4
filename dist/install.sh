#!/bin/sh
# Installs boxgate from a release (make release): the Debian package on Debian and Ubuntu, the RPM package on systems of
# RPM packages such as Fedora, elsewhere the program in /usr/local/bin. It verifies the checksum of what it installs, and
# does not start the service.
#
# usage: install.sh [--download DIRECTORY] FOLDER-OR-URL [SHA256]
#
# SHA256 is the checksum of the release's SHA256SUMS, from a source that you trust: without it a release is as
# trustworthy as the server or folder that it comes from, and http:// is refused. With --download the file is verified
# and put into a directory instead of being installed.
set -eu

fail() {
  echo "install.sh: $*" >&2
  exit 1
}
usage() {
  sed -n '/^# usage:/s/^# //p' "$0" >&2
  exit 2
}

to=
if [ "${1:-}" = --download ]; then
  [ $# -ge 2 ] || usage
  to=$2
  shift 2
fi
[ $# -eq 1 ] || [ $# -eq 2 ] || usage
from=${1%/} want=${2:-}
case $from in -* | '') usage ;; esac

case $(uname -m) in
  x86_64 | amd64) arch=amd64 rpm=x86_64 ;;
  aarch64 | arm64) arch=arm64 rpm=aarch64 ;;
  *) fail "there is no release for $(uname -m), only for amd64 and arm64" ;;
esac
# The packager that manages the system lists itself in its database; another may be installed as a tool.
if dpkg-query -W dpkg >/dev/null 2>&1; then
  format=deb pattern="boxgate_[0-9][0-9A-Za-z.+~]*_$arch\.deb"
elif rpm -q rpm >/dev/null 2>&1; then
  format=rpm pattern="boxgate-[0-9][0-9A-Za-z.+~]*-1\.$rpm\.rpm"
else
  format=binary pattern="gateway-linux-$arch"
fi
[ -n "$to" ] || [ "$(id -u)" -eq 0 ] || fail "installing needs root: run it with sudo"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # apt reads packages as another user

# get NAME: copies a file of the release into $work
get() {
  case $from in
    https://*) curl -fsSL --proto '=https' --retry 3 -o "$work/$1" "$from/$1" || fail "cannot download $from/$1" ;;
    http://*) curl -fsSL --proto '=http,https' --retry 3 -o "$work/$1" "$from/$1" || fail "cannot download $from/$1" ;;
    *) cp -- "$from/$1" "$work/$1" || fail "$from is not a release: make release makes one in bin/release" ;;
  esac
}
# sum FILE: prints its checksum
sum() { sha256sum <"$1" | cut -d ' ' -f 1; }

case $from in
  http://*) [ -n "$want" ] || fail "http:// does not protect the release: use https://, or pass the checksum of SHA256SUMS" ;;
  https://*) ;;
  *://*) fail "only https://, http:// and folders are supported, not $from" ;;
esac
get SHA256SUMS
[ -z "$want" ] || [ "$(sum "$work/SHA256SUMS")" = "$want" ] || fail "SHA256SUMS is not the expected file: its checksum is $(sum "$work/SHA256SUMS")"

names=$(sed -nE "s/^[0-9a-f]{64}  ($pattern)\$/\1/p" "$work/SHA256SUMS")
case $names in
  '') fail "the release has nothing for this machine ($arch)" ;;
  *"
"*) fail "the release has several packages for this machine: $(echo "$names" | tr '\n' ' ')" ;;
esac
get "$names"
listed=$(sed -nE "s/^([0-9a-f]{64})  $pattern\$/\1/p" "$work/SHA256SUMS")
[ "$(sum "$work/$names")" = "$listed" ] || fail "$names is not the file that the release lists: its checksum differs"

if [ -n "$to" ]; then
  cp -- "$work/$names" "$to/$names"
  echo "$to/$names"
elif [ $format = binary ]; then
  install -m 755 "$work/$names" /usr/local/bin/gateway
  echo "/usr/local/bin/gateway is installed. Check the host with 'gateway check'; docs/running.md shows how to run it as a service."
elif [ $format = deb ] && command -v apt-get >/dev/null 2>&1; then
  DEBIAN_FRONTEND=noninteractive apt-get install -y "$work/$names" # with its dependencies
elif [ $format = deb ]; then
  dpkg -i "$work/$names"
elif command -v dnf >/dev/null 2>&1; then
  dnf install -y "$work/$names"
elif command -v zypper >/dev/null 2>&1; then
  zypper --non-interactive install --allow-unsigned-rpm "$work/$names"
else
  rpm -U "$work/$names"
fi
