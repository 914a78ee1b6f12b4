package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/api/spec"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/observe"
	"boxgate/observe/lint"
	"boxgate/observe/replay"
	"boxgate/policy"
	"boxgate/policy/authority"
)

const policyReplayHelp = `Asks a candidate policy, and the policy in force, about the traffic that the box has had, and prints what the candidate would
open and close. Nothing is changed, and nothing is sent.

The gateway decides as it would for new traffic, with the box's header rules, its protected ranges and the operator's ceiling. What
it cannot decide again is counted with the reason: for example paths beyond the 16 that are kept of an observation.`

// newPolicyReplay is `gateway policy replay`.
func newPolicyReplay(o *cli.Options) *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use: "replay BOX POLICY", Short: "Show what a policy would open and close of the traffic so far: " + cli.BoxPolicyHelp, Long: policyReplayHelp,
		Args: cli.ExactArgs(2), Example: "  gateway policy replay web-1 @policy.json --since 24h\n  gateway policy replay web-1 named:web",
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := cli.PolicyArgument(args[1], cli.BoxPolicyHelp, cmd.InOrStdin())
			if err != nil {
				return err
			}
			path := api.BoxPath(args[0], "egress/replay")
			if since != "" {
				path += "?since=" + url.QueryEscape(since)
			}
			return o.Call(cmd, "POST", path, data, func(w io.Writer, answer json.RawMessage) error {
				return cli.Decoded(func(w io.Writer, r spec.Replay) error {
					for _, p := range r.Warnings {
						fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s: %s\n", p.Pointer, p.Message)
					}
					return printReplay(w, &r)
				})(w, answer)
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "only traffic that was seen since then: a duration back from now (24h, 7d) or a time")
	return cmd
}

// printReplay prints the lists that are not empty, then the control.
func printReplay(w io.Writer, r *spec.Replay) error {
	t := &r.Traffic
	if r.Unobserved {
		fmt.Fprintln(w, "The gateway keeps no observations: log.observations.size is 0.")
	}
	fmt.Fprintf(w, "Replayed %s, against version %d of the policy.\n", decisions(t.Seen.Count), r.Version)
	for _, list := range []struct {
		title string
		lines *replay.Lines
	}{
		{"Would be allowed, and is denied now", &t.Opens}, {"Would be denied, and is allowed now", &t.Closes},
		{"Would change in part", &t.Partly},
	} {
		if err := printReplayed(w, list.title, list.lines); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "No change: %s allowed, %s denied", decisions(t.Allowed.Count), decisions(t.Denied.Count))
	if t.Mixed.Count > 0 {
		fmt.Fprintf(w, ", %s partly allowed", decisions(t.Mixed.Count))
	}
	fmt.Fprintln(w, ".")
	printUnknown(w, r)
	return nil
}

func decisions(n uint64) string { return cli.Count(int(n), "decision", "decisions") }

// printUnknown prints what the replay does not cover.
func printUnknown(w io.Writer, r *spec.Replay) {
	t := &r.Traffic
	if t.Unknown.Count > 0 {
		var parts []string
		for _, why := range slices.Sorted(maps.Keys(t.Reasons)) {
			parts = append(parts, fmt.Sprintf("%s %d", why, t.Reasons[why].Count))
		}
		fmt.Fprintf(w, "Unknown: %s cannot be replayed (%s).\n", decisions(t.Unknown.Count), strings.Join(parts, ", "))
	}
	if n := r.Overflow + r.Lost; n > 0 {
		fmt.Fprintf(w, "Missing: %s in no observation.\n", cli.Count(int(n), "decision is", "decisions are"))
	}
	if r.Complete != nil {
		fmt.Fprintf(w, "Complete since %s.\n", r.Complete.Local().Format(time.DateTime))
	}
	if c := t.Control; c.Different.Count > 0 {
		fmt.Fprintf(w, "Control: the policy in force decides otherwise about %s of its own, which are counted as unknown.\n", decisions(c.Different.Count))
	} else if c.Reproduced.Count > 0 {
		fmt.Fprintf(w, "Control: the policy in force reproduces %s of its own.\n", decisions(c.Reproduced.Count))
	}
}

// printReplayed prints a list of changes.
func printReplayed(w io.Writer, title string, l *replay.Lines) error {
	if len(l.Lines) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s: %s\n", title, decisions(l.Count))
	rows := [][]string{{"COUNT", "DESTINATION", "REQUEST", "NOW", "THEN", "NOTE"}}
	for i := range l.Lines {
		line := &l.Lines[i]
		o := observe.Observation{Key: observe.Key{Stage: line.Stage, Protocol: line.Protocol, Name: line.Name, Addr: line.Addr, Port: line.Port}}
		request := cmp.Or(line.Method, "-")
		if line.Shape != "" {
			request += " " + audit.Escape(line.Shape, 80)
		}
		rows = append(rows, []string{strconv.FormatUint(line.Count, 10), trafficDestination(&o), request, outcomeText(line.Before), outcomeText(line.After), noteOf(line)})
	}
	if err := cli.Table(w, rows...); err != nil {
		return err
	}
	if l.More > 0 {
		fmt.Fprintf(w, "and %s\n", cli.Count(l.More, "more line", "more lines"))
	}
	fmt.Fprintln(w)
	return nil
}

func outcomeText(o *replay.Outcome) string {
	if o == nil {
		return "-"
	}
	text := string(o.Reason)
	if o.Rule != "" {
		text += " (" + audit.Escape(o.Rule, 80) + ")"
	}
	return text
}

// noteOf returns what limits a line.
func noteOf(l *replay.Line) string {
	var notes []string
	if len(l.Opened)+len(l.Closed) > 0 {
		notes = append(notes, audit.Escape(strings.Join(append(signed("+", l.Opened), signed("-", l.Closed)...), " "), 200))
	}
	if l.Judged {
		notes = append(notes, "rules judge its requests")
	}
	if l.ByName {
		notes = append(notes, "by name: its addresses are not known")
	}
	if l.Assumed {
		notes = append(notes, "name by DNS")
	}
	if l.Unknown != "" {
		notes = append(notes, "some of it is unknown: "+string(l.Unknown))
	}
	return strings.Join(notes, "; ")
}

func signed(sign string, list []string) (out []string) {
	for _, s := range list {
		out = append(out, sign+s)
	}
	return out
}

// authorityOf asks the gateway for the difference in authority between the policy of a box, or a version of it, and another. Without one, such as for a policy that the box cannot have, why is the
// reason.
func authorityOf(ctx context.Context, client *api.Client, box string, next policy.Spec) (d authority.Difference, why string, err error) {
	var r spec.Replay
	of, versioned := parseBoxVersion(box)
	path := api.BoxPath(of.box, "egress/replay") + "?since=0s"
	if versioned {
		path += "&against=" + strconv.FormatUint(of.version, 10)
	}
	err = client.Do(ctx, "POST", path, next, &r)
	var refused *api.ResponseError
	switch {
	case !errors.As(err, &refused):
		return r.Authority, "", err
	case versioned && refused.Status == http.StatusNotFound:
		return d, "only the policies of existing boxes are compared", nil
	case refused.Status == http.StatusNotFound || refused.Status == http.StatusMethodNotAllowed: // an older gateway
		return d, "", nil
	}
	return d, refused.Error(), nil
}

// printAuthority prints a difference in authority, if there is any.
func printAuthority(w io.Writer, d authority.Difference) error {
	if len(d.Gained)+len(d.Lost) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nAuthority:")
	rows := [][]string{}
	for sign, list := range map[string][]authority.Line{"+": d.Gained, "-": d.Lost} {
		for i := range list {
			rows = append(rows, append([]string{sign}, authorityRow(&list[i])...))
		}
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return cmp.Compare(a[0], b[0]) })
	if err := cli.Table(w, rows...); err != nil {
		return err
	}
	if d.More > 0 {
		fmt.Fprintf(w, "and %s\n", cli.Count(d.More, "more line", "more lines"))
	}
	return nil
}

// authorityRow describes a line of authority.
func authorityRow(l *authority.Line) []string {
	var text []string
	what := cmp.Or(l.Name, l.Prefix, strings.Join(l.Hosts, ","))
	if l.Kind == authority.KindPort {
		what = "allowed addresses"
	}
	if p, err := netip.ParsePrefix(what); err == nil && p.IsSingleIP() {
		what = p.Addr().String()
	}
	if len(l.Ports) == 1 && l.Kind == authority.KindName {
		what = net.JoinHostPort(what, strconv.Itoa(int(l.Ports[0])))
	} else if len(l.Ports) > 0 {
		text = append(text, "ports "+strings.Trim(fmt.Sprint(l.Ports), "[]"))
	}
	for _, p := range l.Protocols {
		text = append(text, string(p))
	}
	text = append(append(text, l.Methods...), l.Paths...)
	if l.Some {
		text = append(text, "(some addresses of it)")
	}
	if l.Wide {
		text = append(text, "(anybody can have a name or address in it)")
	}
	if len(l.Headers) > 0 {
		text = append(text, "(header rules: "+strings.Join(l.Headers, " ")+")")
	}
	if l.Rule != "" {
		text = append(text, "rule "+l.Rule)
	}
	return []string{string(l.Kind), audit.Escape(cmp.Or(what, "-"), 100), audit.Escape(strings.Join(text, " "), 200)}
}

const policyLintHelp = `Lists entries of the policy of a box that allow more than they need to: names below a public suffix such as *.com, which anybody can
register; large ranges of addresses; every port where the traffic used few; entries that no traffic used in 30 days, or in the time
for which the traffic is known.`

// newPolicyLint is `gateway policy lint`.
func newPolicyLint(o *cli.Options) *cobra.Command {
	var exitCode bool
	cmd := &cobra.Command{
		Use: "lint BOX", Short: "List entries of the policy that allow more than the box needs", Long: policyLintHelp, Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			now, err := readPolicy(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			var t boxTraffic
			err = client.Get(cmd.Context(), api.BoxPath(args[0], "egress/observations"), &t)
			var refused *api.ResponseError
			if err != nil && (!errors.As(err, &refused) || refused.Status != http.StatusConflict) { // 409: the gateway keeps none
				return err
			}
			found := lint.Check(now.spec, observe.Summary{Observations: t.Observations, Overflow: t.Overflow, Lost: t.Lost, Since: t.Since}, time.Now())
			if o.JSON {
				err = cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"findings": append([]lint.Finding{}, found...), "version": now.version})
			} else {
				err = printLint(cmd.OutOrStdout(), found)
			}
			if err == nil && exitCode && len(found) > 0 {
				return cli.CommandExit{Status: cli.ExitDifferent}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with status 3 if there are findings")
	return cmd
}

func printLint(w io.Writer, found []lint.Finding) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(w, "There are no findings.")
		return err
	}
	rows := [][]string{{"ENTRY", "KIND", "FINDING"}}
	for _, f := range found {
		rows = append(rows, []string{f.Entry, string(f.Kind), f.Text})
	}
	return cli.Table(w, rows...)
}
