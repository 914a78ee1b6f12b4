package command

import (
	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/host/box"
	"boxgate/selftest"
)

// newProbeCommand is the process started by a self-test. It reads a plan and has no access to secrets.
func newProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    box.ProbeCommand,
		Short:  "Send the traffic of a self-test (started by the gateway)",
		Args:   cli.ExactArgs(0),
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return selftest.Probe(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
