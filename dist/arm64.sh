#!/usr/bin/env bash
# Runs tests as arm64 under qemu: those of packages that need no kernel features missing from user-mode emulation
# (policy, parsing, message loops, configuration), and that of the first process of boxes.
#
# usage: arm64.sh QEMU [PACKAGE...]
set -euo pipefail
cd "$(dirname "$0")/.."
qemu=$1
shift
[ $# -gt 0 ] || set -- ./policy/... ./rule/sign/... ./config/... ./audit/... ./relay/h1/... ./relay/h2/... ./internal/buildinfo/... \
  ./proxy/peek/... ./proxy/header/... ./proxy/scrub/... ./rule/placeholder/... ./proxy/postgres/... ./api/strict/... \
  ./api/problem/... ./certs ./secrets/assertion/... ./store/document/... ./store/pages/... ./launcher/container/...
export GOOS=linux GOARCH=arm64 CGO_ENABLED=0
# The skipped tests start their own program, which the kernel cannot run.
go test -exec "$qemu" -count=1 -timeout 30m -skip '^(TestPanicsDoNotShowSecrets|TestAKilledGateway.*|TestTrailHoldsUnderKill)$' "$@"
# The dozen instructions that every box starts with, as the launcher writes them for this architecture.
QEMU="$qemu" go test -exec "$qemu" -count=1 -v -run '^TestInitProgram' ./launcher/rootfs
go build -trimpath -o "${work:=$(mktemp -d)}/gateway" ./cmd/gateway && "$qemu" "$work/gateway" --version; rm -rf "$work"
