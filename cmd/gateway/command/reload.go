package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/host"
)

// newReloadCommand is `gateway reload`.
func newReloadCommand(o *cli.Options) *cobra.Command {
	return replaceCommand(o, "reload", "Reload the configuration of the running gateway",
		"The configuration is applied as a whole or not at all: if it is invalid, or a gateway cannot start with it, the current one stays.\n"+
			"DNS, the proxy and public URLs keep working, and open connections are drained.")
}

// newUpgradeCommand is `gateway upgrade`.
func newUpgradeCommand(o *cli.Options) *cobra.Command {
	return replaceCommand(o, "upgrade", "Replace the running gateway by the installed program, without interruption",
		"First install the new program at the path of the running one. DNS, the proxy and public URLs keep working, and open connections are\n"+
			"drained. If the new program does not start, the running one continues.")
}

func replaceCommand(o *cli.Options, word, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: word, Short: short, Long: long, Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var done reloadResult
			if err := host.AskControl(cmd.Context(), word, &done); err != nil {
				return err
			}
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), done)
			}
			for _, c := range done.Changes {
				fmt.Fprintln(cmd.OutOrStdout(), c)
			}
			message := "the configuration has not changed"
			if done.Replaced {
				message = "another process serves; the one before drains its connections"
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), message)
			return err
		},
	}
}
