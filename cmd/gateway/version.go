package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version and revision are those of a build that sets them (-ldflags "-X main.version=… -X main.revision=…"). Empty: what
// the Go toolchain recorded.
var version, revision string

// buildInfo says what this binary was built from.
type buildInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Modified bool   `json:"modified"` // the sources were not those of the revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// thisBuild reads what the toolchain recorded. A build without it, as of a test, is of an unknown version.
func thisBuild() buildInfo {
	b := buildInfo{Version: version, Revision: revision, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if recorded, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = recorded.Main.Version
		}
		for _, s := range recorded.Settings {
			switch {
			case s.Key == "vcs.revision" && b.Revision == "":
				b.Revision = s.Value
			case s.Key == "vcs.modified" && revision == "":
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

func (b buildInfo) String() string {
	changed := ""
	if b.Modified {
		changed = ", modified"
	}
	return fmt.Sprintf("gateway %s (revision %s%s, %s, %s)", b.Version, b.Revision, changed, b.Go, b.Platform)
}

// newVersionCommand is `gateway version`.
func newVersionCommand(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the revision and the Go version of this binary",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.json {
				return writeJSON(cmd.OutOrStdout(), thisBuild())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), thisBuild())
			return err
		},
	}
}
