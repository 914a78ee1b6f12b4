#!/usr/bin/env bash
# Unpacks programs that visit public URLs in tests: Chromium with playwright-core to control it, testssl.sh and
# slowhttptest.
set -euo pipefail
root=${1:-/var/lib/boxgate/visitors}
[ -e "$root/ready-1" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "the tests of public URLs need $root: run this with sudo" >&2
  exit 1
fi
mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock 9
[ -e "$root/ready-1" ] && exit 0
echo "unpacking the visitors of public URLs into $root (about a minute, once)"
rm -rf "$root" # an earlier run may have been interrupted
"$(dirname "$0")/unpack.sh" "$root" usr/bin/testssl chromium-headless-shell libnss3-tools testssl.sh slowhttptest
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$root/lib" # all libraries, for LD_LIBRARY_PATH
find "$root/usr/lib" -name '*.so*' ! -type d -exec ln -sf -t "$root/lib" {} +

version=1.57.0
integrity=sha512-agTcKlMw/mjBWOnD6kFZttAAGHgi/Nw0CZ2o6JqWSbMlI219lAFLZZCyqByTsvVAJq5XA5H8cA6PrvBRpBWEuQ==
(cd "$work" && npm pack --silent "playwright-core@$version" >/dev/null)
got=sha512-$(openssl dgst -sha512 -binary "$work/playwright-core-$version.tgz" | base64 -w0)
[ "$got" = "$integrity" ] || { echo "playwright-core $version is not what it was: $got" >&2; exit 1; }
mkdir -p "$root/node_modules/playwright-core"
tar -xzf "$work/playwright-core-$version.tgz" -C "$root/node_modules/playwright-core" --strip-components=1 --no-same-owner
touch "$root/ready-1"
