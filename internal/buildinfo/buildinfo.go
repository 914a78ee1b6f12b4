// Package buildinfo reports the version and sources of the running binary.
package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version, Revision and Date override the values recorded by the Go toolchain unless they are empty (-ldflags "-X
// boxgate/internal/buildinfo.Version=… -X boxgate/internal/buildinfo.Revision=…").
var Version, Revision, Date string

// Info describes the build of this binary.
type Info struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Date     string `json:"date"`     // of the revision, RFC 3339; empty if unknown
	Modified bool   `json:"modified"` // the sources had uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Get returns the build information recorded by the toolchain. Without it, for example in tests, the version is
// unknown.
func Get() Info {
	b := Info{Version: Version, Revision: Revision, Date: Date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if recorded, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = recorded.Main.Version
		}
		for _, s := range recorded.Settings {
			switch {
			case s.Key == "vcs.revision" && b.Revision == "":
				b.Revision = s.Value
			case s.Key == "vcs.time" && b.Date == "" && Revision == "":
				b.Date = s.Value
			case s.Key == "vcs.modified" && Revision == "":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	if b.Revision == "" {
		b.Revision = "unknown"
	}
	return b
}

// String returns the output of `gateway --version`.
func (b Info) String() string { return b.Of("gateway") }

// Of returns the output of --version for a program.
func (b Info) Of(program string) string {
	changed := ""
	if b.Modified {
		changed = ", modified"
	}
	date := ""
	if b.Date != "" {
		date = " of " + b.Date
	}
	return fmt.Sprintf("%s %s (revision %s%s%s, %s, %s)", program, b.Version, b.Revision, date, changed, b.Go, b.Platform)
}
