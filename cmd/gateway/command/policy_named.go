package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy"
	"boxgate/policy/dialect"
)

const namedHelp = `A named policy can be shared by many boxes, which follow it: "named:NAME" can be given to a box instead of a policy. When a change
succeeds, it applies to all these boxes; after an error it applies to no box. Temporary entries (leases) belong to each box
separately. A named policy cannot be removed while boxes follow it.`

// newPolicyNamed is `gateway policy named`.
func newPolicyNamed(o *cli.Options) *cobra.Command {
	cmd := cli.Group("named", "List, show, set and remove policies that many boxes follow")
	cmd.Long = cmd.Short + ".\n\n" + namedHelp
	cmd.Example = "  gateway policy named set web preset:github,pypi\n  gateway policy set demo named:web\n  gateway box create --policy named:web\n  gateway policy named get web"
	get := &cobra.Command{
		Use: "get NAME", Short: "Show a named policy, and the boxes that follow it", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", namedPath(args[0]), nil, cli.Indented)
		},
	}
	set := &cobra.Command{
		Use: "set NAME POLICY", Short: "Make a named policy, or replace it for all boxes that follow it: " + cli.PolicyHelp, Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := cli.PolicyArgument(args[1], cli.PolicyHelp, cmd.InOrStdin())
			if err != nil {
				return err
			}
			return o.Call(cmd, "PUT", namedPath(args[0]), data, func(w io.Writer, answer json.RawMessage) error {
				return cli.Decoded(func(w io.Writer, a namedAnswer) error {
					cli.PrintWarnings(cmd, a.Warnings)
					_, err := fmt.Fprintf(w, "Version %d of the policy %s is in force, for %s.\n", a.Version, a.Name, cli.Count(len(a.Boxes), "box", "boxes"))
					return err
				})(w, answer)
			})
		},
	}
	rm := &cobra.Command{
		Use: "rm NAME...", Short: "Remove named policies that no box follows", Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := o.Call(cmd, "DELETE", namedPath(name), nil, cli.Silent); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for _, sub := range []*cobra.Command{get, set, rm} {
		sub.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if sub == set && len(args) == 1 {
				return completePolicy(o)(cmd, args, begun)
			}
			if len(args) > 0 && sub != rm {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return namedNames(cmd, o, ""), cobra.ShellCompDirectiveNoFileComp
		}
	}
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "List the named policies", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", namedPath(""), nil, cli.Decoded(printNamed))
		},
	}, get, set, rm)
	return cmd
}

// namedAnswer is a named policy as the API returns it.
type namedAnswer struct {
	Name    string          `json:"name"`
	Policy  json.RawMessage `json:"policy"`
	Version uint64          `json:"version"`
	Boxes   []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"boxes"`
	Warnings []cli.Warning `json:"warnings"`
}

// namedPath returns the API path of a named policy, or of the list of all for "".
func namedPath(name string) string {
	const all = "/v2/box/settings/network-policies"
	if name == "" {
		return all
	}
	return all + "/" + url.PathEscape(strings.TrimPrefix(name, cli.NamedPrefix))
}

func printNamed(w io.Writer, all []namedAnswer) error {
	rows := [][]string{{"NAME", "VERSION", "MODE", "BOXES"}}
	for _, n := range all {
		var spec struct {
			Mode policy.Mode `json:"mode"`
		}
		if err := json.Unmarshal(n.Policy, &spec); err != nil {
			return err
		}
		var boxes []string
		for _, b := range n.Boxes {
			if b.Name != "" {
				boxes = append(boxes, b.Name)
			} else {
				boxes = append(boxes, b.ID)
			}
		}
		rows = append(rows, []string{n.Name, strconv.FormatUint(n.Version, 10), string(spec.Mode), strings.Join(boxes, " ")})
	}
	return cli.Table(w, rows...)
}

// readNamed fetches the content of a named policy.
func readNamed(ctx context.Context, client *api.Client, name string) (policy.Spec, error) {
	var answer namedAnswer
	if err := client.Get(ctx, namedPath(name), &answer); err != nil {
		return policy.Spec{}, err
	}
	return dialect.ParseSpec(answer.Policy)
}

// namedNames fetches the names of all named policies, each with the prefix prepended.
func namedNames(cmd *cobra.Command, o *cli.Options, prefix string) (names []string) {
	client, err := o.Client()
	if err != nil {
		return nil
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	var all []namedAnswer
	if client.Get(ctx, namedPath(""), &all) != nil {
		return nil
	}
	for _, n := range all {
		names = append(names, prefix+n.Name)
	}
	return names
}
