#!/usr/bin/env bash
# Builds etcd and the API server of Kubernetes from the Go module proxy, for the tests of fleets and of BoxgatePolicies, or the one that is
# named: etcd in half a minute, both in about four on two cores. It does nothing for programs that are there. The build cache is not kept, as
# nothing else uses its two gigabytes.
set -euo pipefail
cd "$(dirname "$0")/kubernetes/apiserver"
root=/var/lib/boxgate/kubernetes
go=${GO:-go}
declare -A packages=([etcd]=go.etcd.io/etcd/server/v3 [kube-apiserver]=k8s.io/kubernetes/cmd/kube-apiserver)
[ $# -gt 0 ] || set -- etcd kube-apiserver
programs=()
for program in "$@"; do
  [ -x "$root/$program" ] || programs+=("$program")
done
[ ${#programs[@]} -gt 0 ] || exit 0
mkdir -p "$root"
cache=$(mktemp -d "$root/cache.XXXXXX")
trap 'rm -rf "$cache"' EXIT
export CGO_ENABLED=0 GOFLAGS=-trimpath GOWORK=off GOCACHE=$cache
for program in "${programs[@]}"; do
  "$go" build -ldflags '-s -w' -o "$root/$program.new" "${packages[$program]}"
  mv "$root/$program.new" "$root/$program"
done
