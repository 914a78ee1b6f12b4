package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/internal/buildinfo"
)

// newVersionCommand is `gateway version`.
func newVersionCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the revision and the Go version of this binary",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), buildinfo.Get())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.Get())
			return err
		},
	}
}
