package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/remedy"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/name"
	"boxgate/policy/preset"
)

const amendHelp = `HOST is a name or *.name, optionally with :port; an address or a CIDR; or preset:NAME for the hosts of a preset. The policy
for all other destinations stays the same: allow-all already allows everything, deny-all becomes a list of allowed entries,
and in a policy that only denies, an allowed entry is removed from the denied ones. Denied entries win. The command prints
its changes. It makes all of them or none, and retries if another client changes the policy at the same time.

With --for, the policy itself stays unchanged, and the entries are leases in addition to it. When a lease expires, connections that
only it allowed are cut. Denied entries win over allowing leases. "gateway policy leases" lists them.`

// newPolicyAmend is `gateway policy allow` or `gateway policy deny`.
func newPolicyAmend(o *cli.Options, verb string) *cobra.Command {
	var lasts time.Duration
	cmd := &cobra.Command{
		Use: verb + " BOX HOST...", Short: strings.ToUpper(verb[:1]) + verb[1:] + " destinations without changing the rest of the policy",
		Long:    strings.ToUpper(verb[:1]) + verb[1:] + " destinations without changing the rest of the policy.\n\n" + amendHelp,
		Example: fmt.Sprintf("  gateway policy %s demo api.example.com:443\n  gateway policy %s demo '*.example.net' 192.0.2.0/24\n  gateway policy %s demo api.example.com --for 1h", verb, verb, verb),
		Args:    cli.MinArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			entries, err := amendEntries(args[1:])
			if err != nil {
				return err
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("for") {
				return lease(cmd, o, client, leaseRequest{args[0], verb, entries, lasts})
			}
			done, err := amendPolicy(cmd.Context(), client, args[0], verb, entries)
			if err != nil {
				return err
			}
			return done.print(cmd, o)
		},
	}
	cli.MapFields(cmd, map[string]string{"/expires_in": "--for", "/entries": "HOST"})
	cli.Duration(cmd.Flags(), &lasts, "for", 0, "as leases that expire after this time, such as 1h or 7d")
	return cmd
}

// amendEntries parses the destinations of a command line.
func amendEntries(args []string) ([]amend.Entry, error) {
	var entries []amend.Entry
	for _, arg := range args {
		hosts := []string{arg}
		if names, ok := strings.CutPrefix(arg, cli.PresetPrefix); ok {
			var err error
			if hosts, err = preset.Hosts(names); err != nil {
				return nil, cli.UsageError(err)
			}
		}
		for _, host := range hosts {
			e, err := amend.ParseEntry(host)
			if err != nil {
				return nil, cli.UsageError(err)
			}
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// amendResult is the result of amending a policy.
type amendResult struct {
	Entries []amendedEntry  `json:"entries"`
	Policy  json.RawMessage `json:"policy"`
	state   policyState
	changed bool
}

type amendedEntry struct {
	Entry   string `json:"entry"`
	Changed bool   `json:"changed"`
	Message string `json:"message"`
}

// amendPolicy changes the policy of a box and retries while other clients change it concurrently. It terminates, because
// every retry means that one of them succeeded.
func amendPolicy(ctx context.Context, client *api.Client, box, verb string, entries []amend.Entry) (amendResult, error) {
	for {
		state, err := readOwnPolicy(ctx, client, box)
		if err != nil {
			return amendResult{}, err
		}
		spec, done, err := amendSpec(state.spec, verb, entries)
		if err != nil {
			return amendResult{}, err
		}
		if done.changed {
			state, err = writePolicy(ctx, client, box, spec, state)
		}
		if refused, ok := errors.AsType[*api.ResponseError](err); ok && refused.Status == http.StatusPreconditionFailed && ctx.Err() == nil {
			continue
		}
		done.state, done.Policy = state, state.answer
		if err == nil && verb == "allow" {
			done.ineffective(ctx, client, box)
		}
		return done, err
	}
}

func amendSpec(spec policy.Spec, verb string, entries []amend.Entry) (policy.Spec, amendResult, error) {
	var done amendResult
	for _, e := range entries {
		var err error
		c := amend.Change{}
		if verb == "allow" {
			c, err = amend.Allow(spec, e)
		} else {
			c = amend.Deny(spec, e)
		}
		if err != nil {
			return policy.Spec{}, amendResult{}, err
		}
		spec, done.changed = c.Spec, done.changed || c.Changed
		done.Entries = append(done.Entries, amendedEntry{e.String(), c.Changed, c.Said})
	}
	return spec, done, nil
}

// ineffective replaces the message of entries without effect: those with a warning from the gateway, and addresses that
// no policy can open.
func (a *amendResult) ineffective(ctx context.Context, client *api.Client, box string) {
	for i, e := range a.Entries {
		why := closedAddress(ctx, client, box, e.Entry)
		for _, w := range a.state.warnings {
			if e.Changed && a.state.entryAt(w.Pointer) == e.Entry {
				why = w.Message
			}
		}
		switch {
		case why != "" && e.Changed:
			a.Entries[i].Message = "added, but it has no effect: " + why
		case why != "":
			a.Entries[i].Message = "nothing to do: it is in the policy already, and has no effect: " + why
		}
	}
}

// closedAddress returns why the gateway refuses the address whatever the policy. It returns "" if the gateway does not,
// for names and ranges, and on errors.
func closedAddress(ctx context.Context, client *api.Client, box, entry string) string {
	addr, err := netip.ParseAddr(entry)
	if err != nil {
		return ""
	}
	var e audit.Event
	err = client.Do(ctx, "POST", api.BoxPath(box, "egress/explain"), map[string]any{"ip": addr.String(), "port": remedy.HTTPSPort, "protocol": "tcp"}, &e)
	closed := e.Reason == name.ReasonProtectedRange || e.Reason == name.ReasonHostPort || policy.IsOfCeiling(e.Rule)
	if err != nil || e.Verdict != policy.Deny || !closed {
		return ""
	}
	e.Box, e.BoxName, e.Addr = policy.BoxID(box), box, addr
	return remedy.For(e)
}

// otherWarnings returns the warnings that do not concern one of the entries.
func (a *amendResult) otherWarnings() []cli.Warning {
	return slices.DeleteFunc(slices.Clone(a.state.warnings), func(w cli.Warning) bool {
		return slices.ContainsFunc(a.Entries, func(e amendedEntry) bool { return e.Changed && a.state.entryAt(w.Pointer) == e.Entry })
	})
}

func (a amendResult) print(cmd *cobra.Command, o *cli.Options) error {
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), a)
	}
	cli.PrintWarnings(cmd, a.otherWarnings())
	for _, e := range a.Entries {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", e.Entry, e.Message)
	}
	if !a.changed {
		return nil
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "Version %s of the policy is in force.\n", a.state.version)
	return err
}
