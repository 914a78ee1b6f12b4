#!/usr/bin/env bash
# Builds the programs that the tests of the CNI plugin call: cnitool and the plugins of the CNI project, and crictl. It does nothing for
# those that are there. containerd and runc come with the Docker daemon (docker.sh).
set -euo pipefail
root=${1:-/var/lib/boxgate/cni}
go=${GO:-go}
cni=github.com/containernetworking/cni
plugins=github.com/containernetworking/plugins/plugins
install() { # install DIRECTORY PROGRAM MODULE@VERSION
  [ -x "$1/$2" ] || CGO_ENABLED=0 GOFLAGS=-trimpath GOBIN="$1" "$go" install -ldflags '-s -w' "$3"
}
mkdir -p "$root/bin" "$root/plugins"
install "$root/bin" cnitool $cni/cnitool@v1.3.0
install "$root/bin" crictl sigs.k8s.io/cri-tools/cmd/crictl@v1.34.0
install "$root/plugins" bridge $plugins/main/bridge@v1.7.1
install "$root/plugins" loopback $plugins/main/loopback@v1.7.1
install "$root/plugins" host-local $plugins/ipam/host-local@v1.7.1
install "$root/plugins" portmap $plugins/meta/portmap@v1.7.1
