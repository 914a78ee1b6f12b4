package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/amend"
)

// newPolicyDiff is `gateway policy diff`.
func newPolicyDiff(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "diff BOX POLICY", Short: "Show what `gateway policy set` would change: " + cli.PolicyHelp, Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			next, err := policyArgument(args[1], cmd.InOrStdin())
			if err != nil {
				return err
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			now, err := readPolicy(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			diff := amend.Diff(now.spec, next)
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"differences": append([]amend.Difference{}, diff...), "version": now.version})
			}
			return printDiff(cmd.OutOrStdout(), diff)
		},
	}
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
