package command

import (
	"github.com/spf13/cobra"

	session "boxgate/api/session/client"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
)

// shell starts a login shell: bash, or sh if the image has no bash.
var shell = []string{"sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -l"}

// newBoxShell is `gateway box shell`.
func newBoxShell(o *cli.Options) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "shell BOX",
		Short: "Open a shell in a box and exit with its status",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			tty := terminal.Of(cmd.InOrStdin())
			if tty == nil {
				return cli.Usagef("a shell needs a terminal, but standard input is not one; use gateway box exec -i %s -- sh", args[0])
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			return runInteractive(cmd, client, args[0], session.Request{Command: shell, Dir: dir}, tty)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "working directory (default: /workspace/home)")
	return cmd
}
