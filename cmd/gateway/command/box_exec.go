package command

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"boxgate/api"
	session "boxgate/api/session/client"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
)

// boxExec holds the flags of `gateway box exec`.
type boxExec struct {
	dir           string
	input, useTTY bool
}

// newBoxExec is `gateway box exec`.
func newBoxExec(o *cli.Options) *cobra.Command {
	var e boxExec
	cmd := &cobra.Command{
		Use:   "exec [-i] [-t] BOX -- COMMAND [ARG...]",
		Short: "Run a command in a box and exit with its status",
		Long: "Run a command in a box and exit with its status.\n\n" +
			"Without -i, the command has no input. With -i, standard input and SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to it;\n" +
			"the third signal ends the session and the command. With -t, the command gets a terminal.",
		Args: cli.MinArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			return e.run(cmd, client, args[0], args[1:])
		},
	}
	cmd.Flags().StringVar(&e.dir, "dir", "", "working directory (default: /workspace/home)")
	cmd.Flags().BoolVarP(&e.input, "interactive", "i", false, "pass standard input to the command")
	cmd.Flags().BoolVarP(&e.useTTY, "tty", "t", false, "give the command a terminal; requires a terminal here and implies -i")
	return cmd
}

func (e *boxExec) run(cmd *cobra.Command, client *api.Client, box string, command []string) error {
	if e.useTTY {
		tty := terminal.Of(cmd.InOrStdin())
		if tty == nil {
			return cli.Usagef("-t needs a terminal, but standard input is not one; use -i alone")
		}
		return runInteractive(cmd, client, box, session.Request{Command: command, Dir: e.dir}, tty)
	}
	if e.input {
		return runInteractive(cmd, client, box, session.Request{Command: command, Dir: e.dir}, nil)
	}
	req := api.ExecRequest{Command: command, Dir: e.dir}
	status, err := client.Exec(cmd.Context(), box, req, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if by, ok := errors.AsType[cli.Interrupted](context.Cause(cmd.Context())); ok && err != nil {
		return cli.StatusError{Status: by.Status(), Err: errors.New("interrupted; the command goes on in the box. With -i, Ctrl-C reaches the command")}
	}
	return exitError(status, err)
}

// exitError turns the outcome of a command into an error.
func exitError(status int, err error) error {
	if err == nil && status != 0 {
		err = cli.CommandExit{Status: status}
	}
	return err
}
