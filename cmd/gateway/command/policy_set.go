package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newPolicySet is `gateway policy set`.
func newPolicySet(o *cli.Options) *cobra.Command {
	var label string
	cmd := &cobra.Command{
		Use: "set BOX POLICY", Short: "Replace the policy: " + cli.BoxPolicyHelp,
		Long: `Replaces the policy of a box: ` + cli.BoxPolicyHelp + `.

With --label, BOX is left out, and the policy of every box with the label is replaced, one after the other. A box that refuses the
policy keeps its own; the command goes on with the others, lists the failures and exits with status 1.`,
		Example: "  gateway policy set demo preset:github,pypi\n  gateway policy set --label team=x @policy.json",
		Args: func(cmd *cobra.Command, args []string) error {
			if label == "" {
				return cli.ExactArgs(2)(cmd, args)
			}
			if len(args) != 1 {
				return cli.Usagef("--label selects the boxes: give only the policy, as in `gateway policy set --label %s deny-all`", label)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := cli.PolicyArgument(args[len(args)-1], cli.BoxPolicyHelp, cmd.InOrStdin())
			if err != nil {
				return err
			}
			if label != "" {
				return setPolicies(cmd, o, label, data)
			}
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config/network-policy"), data, func(w io.Writer, answer json.RawMessage) error {
				var state struct{ Warnings []cli.Warning }
				if err := json.Unmarshal(answer, &state); err == nil {
					cli.PrintWarnings(cmd, state.Warnings)
				}
				return cli.Indented(w, answer)
			})
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "every box with this label, instead of BOX")
	return cmd
}

// policySet is the result of `gateway policy set --label` for one box.
type policySet struct {
	ID      string          `json:"id"`
	Name    string          `json:"name,omitempty"`
	Version json.Number     `json:"version,omitempty"`
	Policy  json.RawMessage `json:"policy,omitempty"`
	Error   string          `json:"error,omitempty"`
}

// setPolicies replaces the policy of every box with a label.
func setPolicies(cmd *cobra.Command, o *cli.Options, label string, data json.RawMessage) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	boxes, err := boxesWith(cmd.Context(), client, label)
	if err != nil {
		return err
	}
	results, failed := []policySet{}, 0
	warned := map[cli.Warning]bool{}
	for _, b := range boxes {
		result := policySet{ID: b.ID, Name: b.Name}
		if err := client.Do(cmd.Context(), "PUT", api.BoxPath(b.ID, "config/network-policy"), data, &result.Policy); err != nil {
			result.Error, failed = err.Error(), failed+1
		}
		var state struct {
			Version  json.Number
			Warnings []cli.Warning
		}
		_ = json.Unmarshal(result.Policy, &state) // empty if the box refused the policy
		result.Version = state.Version
		for _, w := range state.Warnings { // the same for most boxes
			if !warned[w] && !o.JSON {
				cli.PrintWarnings(cmd, []cli.Warning{w})
			}
			warned[w] = true
		}
		results = append(results, result)
	}
	if err := printPoliciesSet(cmd, o, results); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("the policy was not set for %d of %s", failed, cli.Count(len(boxes), "box", "boxes"))
	}
	return nil
}

func printPoliciesSet(cmd *cobra.Command, o *cli.Options, results []policySet) error {
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), results)
	}
	rows := [][]string{{"ID", "NAME", "VERSION", "RESULT"}}
	for _, r := range results {
		text := "set"
		if r.Error != "" {
			text = strings.ReplaceAll(r.Error, "\n", "; ")
		}
		rows = append(rows, []string{r.ID, r.Name, textOrDash(r.Version.String()), text})
	}
	return cli.Table(cmd.OutOrStdout(), rows...)
}
