package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/host"
)

// newReloadCommand is `gateway reload`.
func newReloadCommand(o *cli.Options) *cobra.Command {
	return replaceCommand(o, "reload", "Have the running gateway read its configuration again",
		"The configuration is taken over whole, or not at all: with a mistake in it, or if no gateway could start with it, the one in force stays.\n"+
			"DNS, the proxy and public URLs go on meanwhile, and connections that are open are drained.")
}

// newUpgradeCommand is `gateway upgrade`.
func newUpgradeCommand(o *cli.Options) *cobra.Command {
	return replaceCommand(o, "upgrade", "Have the installed program take the place of the running gateway, without a gap",
		"Install the new program at the path of the running one first. DNS, the proxy and public URLs go on meanwhile, and connections that are\n"+
			"open are drained. If the new program does not start, the running one goes on.")
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
			said := "the configuration has not changed"
			if done.Replaced {
				said = "another process serves; the one before drains its connections"
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), said)
			return err
		},
	}
}
