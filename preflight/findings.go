// Package preflight looks at what the host must offer to a gateway, and says how to fix what it does not. It changes
// nothing.
package preflight

import (
	"fmt"

	"boxgate/config"
)

// Finding is one thing the gateway needs of its host: nil Err if it is there.
type Finding struct {
	What string
	Err  error
}

// Check looks at what the host itself must offer, apart from its network. Each error says what to do.
func Check(cfg config.Config) []Finding {
	return []Finding{
		{"root", NeedRoot()},
		{"IPv6", needIPv6()},
		{"control groups", needCgroups()},
		{"runtime " + cfg.Launcher.Runtime, needTool(cfg.Launcher.Runtime)},
		{"image " + cfg.Launcher.Images["default"], needImage(cfg)},
		{"overlayfs", needFilesystem("overlay")},
		{"id-mapped mounts", needMappedMounts(cfg)},
	}
}

// Warning is a finding that keeps nothing from working.
type Warning struct{ error }

// Warnf makes a warning of a text that says what may go wrong and what to do.
func Warnf(format string, args ...any) error { return Warning{fmt.Errorf(format, args...)} }

// Lacks returns the single mistakes that were joined to one error.
func Lacks(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, Lacks(e)...)
	}
	return out
}
