package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/amend"
)

// leaseRequest is the request of `gateway policy allow --for` and `gateway policy deny --for`.
type leaseRequest struct {
	box, verb string
	entries   []amend.Entry
	lasts     time.Duration
}

// leasesAnswer holds the temporary entries of a policy as the API returns them.
type leasesAnswer struct {
	Leases []struct {
		Action    string `json:"action"`
		Entry     string `json:"entry"`
		ExpiresAt int64  `json:"expires_at"`
		ExpiresIn int64  `json:"expires_in"`
		Idle      string `json:"idle"`
	} `json:"leases"`
	Version  json.Number   `json:"version"`
	Warnings []cli.Warning `json:"warnings"`
}

func leasesPath(box string) string { return api.BoxPath(box, "config/network-policy/leases") }

// lease adds temporary entries to a policy.
func lease(cmd *cobra.Command, o *cli.Options, client *api.Client, asked leaseRequest) error {
	if asked.lasts < time.Second {
		return cli.Usagef("--for: %q is too short; give a second or more, such as 1h", asked.lasts)
	}
	var names []string
	wanted := map[string]bool{}
	for _, e := range asked.entries {
		names, wanted[e.String()] = append(names, e.String()), true
	}
	var answer json.RawMessage
	body := map[string]any{"action": asked.verb, "entries": names, "expires_in": int64(asked.lasts / time.Second)}
	if err := client.Do(cmd.Context(), "POST", leasesPath(asked.box), body, &answer); err != nil {
		return err
	}
	if o.JSON {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), string(answer))
		return err
	}
	return cli.Decoded(func(w io.Writer, a leasesAnswer) error {
		cli.PrintWarnings(cmd, a.Warnings)
		for _, l := range a.Leases {
			if l.Action == "allow" && wanted[l.Entry] && l.Idle == "" {
				l.Idle = idle(closedAddress(cmd.Context(), client, asked.box, l.Entry))
			}
			switch {
			case l.Action != asked.verb || !wanted[l.Entry]:
			case l.Idle != "":
				fmt.Fprintf(w, "%s: %s; the entry ends at %s\n", l.Entry, l.Idle, clockTime(l.ExpiresAt))
			default:
				fmt.Fprintf(w, "%s: %s until %s\n", l.Entry, map[string]string{"allow": "allowed", "deny": "denied"}[l.Action], clockTime(l.ExpiresAt))
			}
		}
		_, err := fmt.Fprintf(w, "Version %s of the policy is in force.\n", a.Version)
		return err
	})(cmd.OutOrStdout(), answer)
}

func clockTime(unix int64) string { return time.Unix(unix, 0).Format("2006-01-02 15:04:05") }

// newPolicyLeases is `gateway policy leases`.
func newPolicyLeases(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "leases BOX", Short: "List the temporary entries (leases) of the policy", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", leasesPath(args[0]), nil, cli.Decoded(printLeases))
		},
	}
}

func printLeases(w io.Writer, a leasesAnswer) error {
	rows := [][]string{{"ACTION", "DESTINATION", "LEFT", "UNTIL"}}
	for _, l := range a.Leases {
		rows = append(rows, []string{l.Action, l.Entry, (time.Duration(l.ExpiresIn) * time.Second).String(), clockTime(l.ExpiresAt)})
	}
	return cli.Table(w, rows...)
}

// newPolicyEnd is `gateway policy end`.
func newPolicyEnd(o *cli.Options) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "end BOX HOST...", Short: "End leases of `gateway policy allow --for` or `deny --for` early",
		Long:    "End leases of `gateway policy allow --for` or `gateway policy deny --for` early. Spell HOST as it was given then.",
		Example: "  gateway policy end demo api.example.com\n  gateway policy end demo --all",
		Args: func(cmd *cobra.Command, args []string) error {
			if all {
				return cli.ExactArgs(1)(cmd, args)
			}
			return cli.MinArgs(2)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if all {
				return o.Call(cmd, "DELETE", leasesPath(args[0]), nil, cli.Decoded(printLeases))
			}
			for _, entry := range args[1:] {
				query := url.Values{"entry": {entry}}
				if err := o.Call(cmd, "DELETE", leasesPath(args[0])+"?"+query.Encode(), nil, cli.Silent); err != nil {
					return fmt.Errorf("%s: %w", entry, err)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "end all of them")
	return cmd
}

// idle prefixes the reason why an entry has no effect. "" is returned unchanged.
func idle(why string) string {
	if why == "" {
		return ""
	}
	return "no effect: " + why
}
