// Package preflight checks the requirements of the gateway on its host, and explains how to meet missing ones. It has no
// side effects.
package preflight

import (
	"fmt"

	"boxgate/config"
)

// Finding is the result of one check. Err is nil if it passed.
type Finding struct {
	What string
	Err  error
}

// Check checks the requirements on the host, except those on its network. Each error explains how to fix it.
func Check(cfg config.Config) []Finding {
	findings := []Finding{
		{"root", NeedRoot()},
		{"IPv6", needIPv6()},
	}
	if !cfg.Launcher.Enabled { // the checks below are for launched boxes
		return findings
	}
	return append(findings, []Finding{
		{"control groups", needCgroups()},
		{"runtime " + cfg.Launcher.Runtime, needRuntime(cfg.Launcher.Runtime)},
		{"overlayfs", needFilesystem("overlay")},
		{"id-mapped mounts", needMappedMounts(cfg)},
	}...)
}

// Warning is an error that does not prevent the gateway from working.
type Warning struct{ error }

// Warnf returns a [Warning]. The text should describe the risk and how to fix it.
func Warnf(format string, args ...any) error { return Warning{fmt.Errorf(format, args...)} }

// Errors splits a joined error into single errors.
func Errors(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, Errors(e)...)
	}
	return out
}
