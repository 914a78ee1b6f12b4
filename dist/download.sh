#!/usr/bin/env bash
# Downloads Debian packages of any architecture from this machine's archive.
#
# usage: download.sh DIRECTORY ARCHITECTURE PACKAGE...
set -euo pipefail
to=$1 arch=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial"
touch "$work/status"
apt=(apt-get -qq -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o Dir::State::lists="$work/lists"
  -o Dir::State::status="$work/status" -o Dir::Cache="$work" -o APT::Sandbox::User=root)
"${apt[@]}" update
cd "$to"
"${apt[@]}" download "$@"
