package command

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newBoxNetwork is `gateway box network`.
func newBoxNetwork(o *cli.Options) *cobra.Command {
	cmd := cli.Group("network", "Show and replace the policy and the header rules of a box together")
	cmd.AddCommand(&cobra.Command{
		Use: "get BOX", Short: "Show the policy and the header rules of a box, without values", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", api.BoxPath(args[0], "config/network"), nil, cli.Indented)
		},
	}, newBoxNetworkSet(o))
	return cmd
}

const boxNetworkHelp = `Replaces the policy and the header rules of a box in one change: no request meets the new policy with the old header rules, or
the old policy with the new header rules.

DOCUMENT is an object of network_policy and attach_headers, as "gateway policy convert" writes it: JSON or YAML, @FILE, or - for
standard input. Without attach_headers, the box has only the header rules that its policy brings. Instead of DOCUMENT, --policy and
--headers take both as in "gateway box create".`

const boxNetworkExample = `  gateway policy convert --from vercel --to boxgate policy.json | gateway box network set demo -
  gateway box network set demo --policy '{"mode": "custom", "allowed_domains": ["api.example.com"]}' --headers @rules.yaml
  gateway box network set demo --policy deny-all --headers '{}'`

func newBoxNetworkSet(o *cli.Options) *cobra.Command {
	var policy, headers string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "set BOX [DOCUMENT]", Short: "Replace the policy and the header rules of a box in one change", Long: boxNetworkHelp, Example: boxNetworkExample,
		Args: func(cmd *cobra.Command, args []string) error {
			switch flags := cmd.Flags().Changed("policy") && cmd.Flags().Changed("headers"); {
			case len(args) == 2 && (policy != "" || headers != ""):
				return cli.Usagef("DOCUMENT has both; leave out --policy and --headers")
			case len(args) == 1 && !flags:
				return cli.Usagef("give DOCUMENT, or both --policy and --headers; --headers '{}' for a box without header rules")
			case len(args) == 1:
				return nil
			}
			return cli.ExactArgs(2)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := networkArgument(args[1:], policy, headers, cmd.InOrStdin())
			if err != nil {
				return err
			}
			path := api.BoxPath(args[0], "config/network")
			if dryRun {
				path += "?dry_run=true"
			}
			return o.Call(cmd, "PUT", path, body, func(w io.Writer, answer json.RawMessage) error {
				var state struct{ Warnings []cli.Warning }
				if err := json.Unmarshal(answer, &state); err == nil {
					cli.PrintWarnings(cmd, state.Warnings)
				}
				return cli.Indented(w, answer)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&policy, "policy", "", cli.BoxPolicyHelp)
	f.StringVar(&headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -`)
	f.BoolVar(&dryRun, "dry-run", false, "show what the change would open and close, without making it")
	return cmd
}

// networkDocument returns a document. The API demands both members, so that a client does not remove header rules by mistake; a document
// of `gateway policy convert` has attach_headers only if there are any.
func networkDocument(arg string, stdin io.Reader) (json.RawMessage, error) {
	data, err := cli.RulesArgument(arg, stdin)
	var members map[string]json.RawMessage
	if err != nil || json.Unmarshal(data, &members) != nil || members["network_policy"] == nil {
		return data, err
	}
	if _, has := members["attach_headers"]; has {
		return data, nil
	}
	_, rest, _ := bytes.Cut(data, []byte("{")) // not encoded again: the gateway refuses duplicates
	return append([]byte(`{"attach_headers":{},`), rest...), nil
}

// networkArgument returns the body of a change: the document in args, or one made from the flags.
func networkArgument(args []string, policy, headers string, stdin io.Reader) (json.RawMessage, error) {
	if len(args) > 0 {
		return networkDocument(args[0], stdin)
	}
	given, err := cli.PolicyArgument(policy, cli.BoxPolicyHelp, stdin)
	if err != nil {
		return nil, err
	}
	rules, err := cli.RulesArgument(headers, stdin)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]json.RawMessage{"network_policy": given, "attach_headers": rules})
}
