package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"boxgate/internal/buildinfo"
)

// newVersionCommand is `gateway version`.
func newVersionCommand(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the revision and the Go version of this binary",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.json {
				return writeJSON(cmd.OutOrStdout(), buildinfo.Get())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.Get())
			return err
		},
	}
}
