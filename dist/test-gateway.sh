#!/bin/sh
# Builds the gateway of the end-to-end tests and the demo, and prints the gateway's path. The path contains hashes of
# both programs. `go test` therefore repeats a test that reads the path from its environment exactly when one of them
# has changed.
#
#   dist/test-gateway.sh [go build flags...]
#
# With GATEWAY_TEST_COVER=1 the gateway writes coverage data of every package to GOCOVERDIR.
set -eu
cd "$(dirname "$0")/.."
mkdir -p bin/test
exec 9>bin/test/lock
flock 9
[ -z "${GATEWAY_TEST_COVER:-}" ] || set -- -cover "-coverpkg=$(${GO:-go} list -m)/..." "$@"
# Without the revision, because it would change the hash with every commit.
${GO:-go} build -buildvcs=false -ldflags='-s -w' -o bin/test/gateway "$@" ./e2e/harness/gateway
${GO:-go} build -buildvcs=false -ldflags='-s -w' -o bin/test/gateway-demo "$@" ./cmd/gateway-demo
content() { ${GO:-go} tool buildid "bin/test/$1" | sed 's,.*/,,'; } # without the input hash, because different sources may produce the same program
sum=$(content gateway)+$(content gateway-demo)
find bin/test -mindepth 1 -maxdepth 1 -type d -mmin +1440 ! -name "$sum" -exec rm -rf {} +
mkdir -p -m 755 "bin/test/$sum"
touch "bin/test/$sum" # marks it as used
for program in gateway-demo gateway; do
  if ! [ -x "bin/test/$sum/$program" ]; then # a copy, because the next build only touches the original
    install -m 755 "bin/test/$program" "bin/test/$sum/new"
    touch -d 2000-01-01 "bin/test/$sum/new" # `go test` compares the time too, and the hash identifies the content
    mv "bin/test/$sum/new" "bin/test/$sum/$program"
  fi
done
echo "$PWD/bin/test/$sum/gateway"
