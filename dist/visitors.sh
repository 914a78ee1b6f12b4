#!/usr/bin/env bash
# Unpacks programs that visit public URLs and the dashboard in tests: Chromium with playwright-core to control it and
# axe-core to examine pages, testssl.sh and slowhttptest.
set -euo pipefail
root=${1:-/var/lib/boxgate/visitors}
packages=(
  "playwright-core 1.57.0 sha512-agTcKlMw/mjBWOnD6kFZttAAGHgi/Nw0CZ2o6JqWSbMlI219lAFLZZCyqByTsvVAJq5XA5H8cA6PrvBRpBWEuQ=="
  "axe-core 4.14.1 sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)
ready() {
  [ -e "$root/ready-1" ] || return 1
  for package in "${packages[@]}"; do
    read -r name version _ <<<"$package"
    grep -qF "\"version\": \"$version\"" "$root/node_modules/$name/package.json" 2>/dev/null || return 1
  done
}
ready && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "the tests of public URLs and the dashboard need $root: run this with sudo" >&2
  exit 1
fi
mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock 9
ready && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -e "$root/ready-1" ]; then
  echo "unpacking the visitors of public URLs into $root (about a minute, once)"
  rm -rf "$root" # an earlier run may have been interrupted
  "$(dirname "$0")/unpack.sh" "$root" usr/bin/testssl chromium-headless-shell libnss3-tools testssl.sh slowhttptest
  mkdir -p "$root/lib" # all libraries, for LD_LIBRARY_PATH
  find "$root/usr/lib" -name '*.so*' ! -type d -exec ln -sf -t "$root/lib" {} +
fi

for package in "${packages[@]}"; do
  read -r name version integrity <<<"$package"
  (cd "$work" && npm pack --silent "$name@$version" >/dev/null)
  got=sha512-$(openssl dgst -sha512 -binary "$work/$name-$version.tgz" | base64 -w0)
  [ "$got" = "$integrity" ] || { echo "$name $version is not what it was: $got" >&2; exit 1; }
  mkdir -p "$root/node_modules/$name.new"
  tar -xzf "$work/$name-$version.tgz" -C "$root/node_modules/$name.new" --strip-components=1 --no-same-owner
  rm -rf "${root:?}/node_modules/$name"
  mv "$root/node_modules/$name.new" "$root/node_modules/$name"
done
touch "$root/ready-1"
