#!/bin/sh
# Builds the gateway of the end-to-end tests and prints its path, which contains a hash of its content: a test that reads
# the path from its environment is run anew by `go test` when the gateway has changed, and only then.
#
#   dist/test-gateway.sh [go build flags...]
#
# With GATEWAY_TEST_COVER=1 it writes coverage data of every package into GOCOVERDIR.
set -eu
cd "$(dirname "$0")/.."
mkdir -p bin/test
exec 9>bin/test/lock
flock 9
[ -z "${GATEWAY_TEST_COVER:-}" ] || set -- -cover "-coverpkg=$(${GO:-go} list -m)/..." "$@"
# The revision is no part of it, or every commit would be another gateway.
${GO:-go} build -buildvcs=false -ldflags='-s -w' -o bin/test/gateway "$@" ./e2e/harness/gateway
sum=$(${GO:-go} tool buildid bin/test/gateway | sed 's,.*/,,') # without its own inputs: the same gateway may come from other sources
find bin/test -mindepth 1 -maxdepth 1 -type d -mmin +1440 ! -name "$sum" -exec rm -rf {} +
mkdir -p "bin/test/$sum"
touch "bin/test/$sum" # in use
if ! [ -x "bin/test/$sum/gateway" ]; then # a copy: the next build is another file, and changes the time of its own only
  cp bin/test/gateway "bin/test/$sum/new"
  touch -d 2000-01-01 "bin/test/$sum/new" # `go test` looks at it too, and the hash says all that it should know
  mv "bin/test/$sum/new" "bin/test/$sum/gateway"
fi
echo "$PWD/bin/test/$sum/gateway"
