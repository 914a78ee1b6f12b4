package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy"
	"boxgate/policy/amend"
)

// newPolicyDiff is `gateway policy diff`.
func newPolicyDiff(o *cli.Options) *cobra.Command {
	var exitCode bool
	cmd := &cobra.Command{
		Use: "diff BOX POLICY", Short: "Show what `gateway policy set` would change: " + cli.BoxPolicyHelp, Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			next, err := policyOrNamed(cmd, client, args[1])
			if err != nil {
				return err
			}
			now, err := readPolicy(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			diff := amend.Diff(now.spec, next)
			if o.JSON {
				err = cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"differences": append([]amend.Difference{}, diff...), "version": now.version})
			} else {
				err = printDiff(cmd.OutOrStdout(), diff)
			}
			if err == nil && exitCode && len(diff) > 0 {
				return cli.CommandExit{Status: cli.ExitDifferent}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with status 3 if there are differences")
	return cmd
}

// policyOrNamed reads the policy in an argument, or the named policy that the argument refers to.
func policyOrNamed(cmd *cobra.Command, client *api.Client, arg string) (policy.Spec, error) {
	if strings.HasPrefix(arg, cli.NamedPrefix) {
		return readNamed(cmd.Context(), client, arg)
	}
	return policyArgument(arg, cmd.InOrStdin())
}

func printDiff(w io.Writer, diff []amend.Difference) error {
	if len(diff) == 0 {
		_, err := fmt.Fprintln(w, "The policies are the same.")
		return err
	}
	for _, d := range diff {
		if _, err := fmt.Fprintln(w, d); err != nil {
			return err
		}
	}
	return nil
}
