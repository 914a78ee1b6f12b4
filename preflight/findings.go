// Package preflight checks what the gateway needs of its host, and says how to fix what is missing. It changes nothing.
package preflight

import (
	"fmt"

	"boxgate/config"
)

// Finding is the result of one check: Err is nil if it passed.
type Finding struct {
	What string
	Err  error
}

// Check checks what the gateway needs of the host, except its network. Each error says what to do.
func Check(cfg config.Config) []Finding {
	findings := []Finding{
		{"root", NeedRoot()},
		{"IPv6", needIPv6()},
	}
	if !cfg.Launcher.Enabled { // nothing below is used
		return findings
	}
	return append(findings, []Finding{
		{"control groups", needCgroups()},
		{"runtime " + cfg.Launcher.Runtime, needRuntime(cfg.Launcher.Runtime)},
		{"image " + cfg.Launcher.Images["default"], needImage(cfg)},
		{"overlayfs", needFilesystem("overlay")},
		{"id-mapped mounts", needMappedMounts(cfg)},
	}...)
}

// Warning is an error that does not keep the gateway from working.
type Warning struct{ error }

// Warnf makes a warning. The text should say what may go wrong and what to do.
func Warnf(format string, args ...any) error { return Warning{fmt.Errorf(format, args...)} }

// Errors returns the single errors that were joined into one.
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
