#!/usr/bin/env bash
# Runs the tests of the packages that need nothing of the kernel that user-mode emulation lacks, compiled for arm64, under qemu:
# deciding, parsing, the message loops, the configuration, and the first process of boxes.
#
# usage: arm64.sh QEMU [PACKAGE...]
set -euo pipefail
cd "$(dirname "$0")/.."
qemu=$1
shift
[ $# -gt 0 ] || set -- ./policy/... ./rule/sign/... ./config/... ./audit/... ./internal/h1/... ./internal/h2/... ./internal/buildinfo/... \
  ./proxy/peek/... ./proxy/header/... ./proxy/scrub/... ./rule/placeholder/... ./proxy/postgres/... ./api/strict/... \
  ./api/problem/... ./certs ./secrets/assertion/... ./store/document/... ./store/pages/... ./launcher/container/...
export GOOS=linux GOARCH=arm64 CGO_ENABLED=0
# Left out: tests that start their own program, which the kernel does not run.
go test -exec "$qemu" -count=1 -timeout 30m -skip '^(TestPanicsDoNotShowSecrets|TestAKilledGateway.*|TestTrailHoldsUnderKill)$' "$@"
# The dozen instructions that every box begins with, as the launcher writes them for this architecture.
QEMU="$qemu" go test -exec "$qemu" -count=1 -v -run '^TestInitProgram' ./launcher/furnish
go build -trimpath -o "${work:=$(mktemp -d)}/gateway" ./cmd/gateway && "$qemu" "$work/gateway" --version; rm -rf "$work"
