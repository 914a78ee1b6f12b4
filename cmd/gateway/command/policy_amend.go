package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/dialect"
	"boxgate/policy/document"
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

// amendEntries parses the destinations of a command line, which may also be lists separated by commas. The error contains every
// mistake.
func amendEntries(args []string) ([]amend.Entry, error) {
	var entries []amend.Entry
	var flaws document.InvalidError
	for _, arg := range args {
		hosts := strings.Split(arg, ",")
		if names, ok := strings.CutPrefix(arg, cli.PresetPrefix); ok {
			var err error
			if hosts, err = preset.Hosts(names); err != nil {
				return nil, cli.UsageError(err)
			}
		}
		for _, host := range hosts {
			e, err := amend.ParseEntry(strings.TrimSpace(host))
			if err != nil {
				flaws.Problems = append(flaws.Problems, document.Problem{Message: err.Error()})
				continue
			}
			entries = append(entries, e)
		}
	}
	if len(flaws.Problems) > 0 {
		return nil, cli.UsageError(&flaws)
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

// newPolicyEdit is `gateway policy edit`.
func newPolicyEdit(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "edit BOX", Short: "Edit the policy in $VISUAL or $EDITOR",
		Long: `Opens the policy in $VISUAL, $EDITOR or vi. The edited policy replaces it as a whole if it is valid and no other client has
changed the policy in the meantime. Otherwise the policy stays unchanged, and the command prints where the edited file is.`,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			e := policyEdit{cmd: cmd, client: client, box: args[0], json: o.JSON}
			return e.run(context.WithoutCancel(cmd.Context()))
		},
	}
}

// policyEdit is one edit of a box's policy.
type policyEdit struct {
	cmd    *cobra.Command
	client *api.Client
	box    string
	json   bool
	file   string
	before policyState
	text   []byte // contents of the file before the edit
}

// run edits the policy. The file is kept if the edit would otherwise be lost.
func (e *policyEdit) run(ctx context.Context) error {
	var err error
	if e.before, err = readOwnPolicy(ctx, e.client, e.box); err != nil {
		return err
	}
	if e.text, err = json.MarshalIndent(e.before.spec, "", "  "); err != nil {
		return err
	}
	e.text = append(e.text, '\n')
	dir, err := os.MkdirTemp("", "boxgate-policy-")
	if err != nil {
		return err
	}
	e.file = filepath.Join(dir, "policy.json")
	if err := os.WriteFile(e.file, e.text, 0o600); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	next, err := e.edited(ctx)
	if err == nil && next != nil {
		err = e.apply(ctx, *next)
	}
	if after, _ := os.ReadFile(e.file); err != nil && !bytes.Equal(after, e.text) {
		return fmt.Errorf("%w\nThe policy was not changed. What you wrote is in %s", err, e.file)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// edited runs the editor and returns the new policy, or nil if it was not changed. At a terminal, an invalid policy can
// be edited again.
func (e *policyEdit) edited(ctx context.Context) (*policy.Spec, error) {
	for {
		if err := e.openEditor(ctx); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(e.file)
		if err != nil {
			return nil, err
		}
		spec, err := dialect.ParseSpec(data)
		switch {
		case bytes.Equal(data, e.text) || err == nil && len(amend.Diff(e.before.spec, spec)) == 0:
			return nil, e.print("Nothing was changed.")
		case err == nil:
			return &spec, nil
		case !e.confirmEdit(err):
			return nil, err
		}
	}
}

// openEditor runs the editor. Like git, it allows arguments in the variable.
func (e *policyEdit) openEditor(ctx context.Context) error {
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		editor = "vi"
	}
	signals := make(chan os.Signal, 1) // so that Ctrl-C only reaches the editor
	signal.Notify(signals, os.Interrupt, syscall.SIGQUIT)
	defer signal.Stop(signals)
	run := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, editor, e.file)
	run.Stdin, run.Stdout, run.Stderr = e.cmd.InOrStdin(), e.cmd.OutOrStdout(), e.cmd.ErrOrStderr()
	if e.json {
		run.Stdout = e.cmd.ErrOrStderr()
	}
	if err := run.Run(); err != nil {
		return fmt.Errorf("the editor %q failed (%w); set EDITOR to another one", editor, err)
	}
	return nil
}

// confirmEdit prints the mistake and asks at a terminal whether to edit again.
func (e *policyEdit) confirmEdit(flaw error) bool {
	if terminal.Of(e.cmd.InOrStdin()) == nil {
		return false
	}
	fmt.Fprintf(e.cmd.ErrOrStderr(), "%v\nEdit again? [Y/n] ", flaw)
	answer, err := bufio.NewReader(e.cmd.InOrStdin()).ReadString('\n')
	return err == nil && !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "n")
}

// apply replaces the policy.
func (e *policyEdit) apply(ctx context.Context, next policy.Spec) error {
	after, err := writePolicy(ctx, e.client, e.box, next, e.before)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && refused.Status == http.StatusPreconditionFailed {
		return fmt.Errorf("somebody else changed the policy while you edited it; see `gateway policy diff %s @%s`", e.box, e.file)
	}
	if err != nil {
		return err
	}
	if e.json {
		_, err := fmt.Fprintln(e.cmd.OutOrStdout(), string(after.answer))
		return err
	}
	cli.PrintWarnings(e.cmd, after.warnings)
	if err := printDiff(e.cmd.OutOrStdout(), amend.Diff(e.before.spec, after.spec)); err != nil {
		return err
	}
	return e.print("Version " + after.version.String() + " of the policy is in force.")
}

// print prints a sentence, unless the output is JSON.
func (e *policyEdit) print(text string) error {
	out := e.cmd.OutOrStdout()
	if e.json {
		out = io.Discard
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

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
