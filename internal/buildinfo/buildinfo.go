// Package buildinfo reports what the running binary was built from.
package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version, Revision and Date are those of a build that sets them (-ldflags "-X boxgate/internal/buildinfo.Version=… -X
// boxgate/internal/buildinfo.Revision=…"). Empty: what the Go toolchain recorded.
var Version, Revision, Date string

// Info is what this binary was built from.
type Info struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Date     string `json:"date"`     // of the revision, RFC 3339; empty: not known
	Modified bool   `json:"modified"` // the sources had uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Get returns what the toolchain recorded. A build without such a record, as in tests, has an unknown version.
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

// String returns what `gateway --version` prints.
func (b Info) String() string { return b.Of("gateway") }

// Of returns what the --version of a program prints.
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
