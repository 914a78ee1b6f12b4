// Package cni tests `gateway cni` with real callers: cnitool, the bridge plugin of the CNI project, and containerd with crictl.
package cni
