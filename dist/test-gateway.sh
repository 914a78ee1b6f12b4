#!/bin/sh
# Builds the gateway of the end-to-end tests, and the demo beside it, and prints the gateway's path, which contains hashes of
# the content of both: a test that reads the path from its environment is run anew by `go test` when one of them has changed,
# and only then.
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
${GO:-go} build -buildvcs=false -ldflags='-s -w' -o bin/test/gateway-demo "$@" ./cmd/gateway-demo
content() { ${GO:-go} tool buildid "bin/test/$1" | sed 's,.*/,,'; } # without its own inputs: the same program may come from other sources
sum=$(content gateway)+$(content gateway-demo)
find bin/test -mindepth 1 -maxdepth 1 -type d -mmin +1440 ! -name "$sum" -exec rm -rf {} +
mkdir -p -m 755 "bin/test/$sum"
touch "bin/test/$sum" # in use
for program in gateway-demo gateway; do
  if ! [ -x "bin/test/$sum/$program" ]; then # a copy: the next build is another file, and changes the time of its own only
    install -m 755 "bin/test/$program" "bin/test/$sum/new"
    touch -d 2000-01-01 "bin/test/$sum/new" # `go test` looks at it too, and the hash says all that it should know
    mv "bin/test/$sum/new" "bin/test/$sum/$program"
  fi
done
echo "$PWD/bin/test/$sum/gateway"
