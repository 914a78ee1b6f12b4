package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/learn"
)

func enforcementPath(box string) string {
	return api.BoxPath(box, "config/network-policy/enforcement")
}

// enforcement is how a policy is applied, as the API returns it.
type enforcement struct {
	Enforcement string      `json:"enforcement"`
	ExpiresAt   int64       `json:"expires_at"`
	ExpiresIn   int64       `json:"expires_in"`
	Version     json.Number `json:"version"`
}

func (e enforcement) print(w io.Writer) error {
	text := "The policy is enforced"
	if e.Enforcement == "audit" {
		left := time.Duration(e.ExpiresIn) * time.Second
		text = fmt.Sprintf("The policy is audited, not enforced, until %s (%s left)", clockTime(e.ExpiresAt), left)
	}
	_, err := fmt.Fprintf(w, "%s. Its version is %s.\n", text, e.Version)
	return err
}

const policyAuditHelp = `Has the policy audited for a time instead of enforced, so that a policy can be learned from its traffic. Traffic that the policy
refuses then passes, logged as would_deny and without credentials: header rules apply only where the policy itself allows.
Denied entries, protected ranges and policy.ceiling stay enforced. Anything else can leave the box, so give it no data that must
not. After the time, 24 hours at most, the policy is enforced and connections that it denies are cut.

Without flags, prints whether the policy is audited.`

// newPolicyAudit is `gateway policy audit`.
func newPolicyAudit(o *cli.Options) *cobra.Command {
	var lasts time.Duration
	var end bool
	cmd := &cobra.Command{
		Use: "audit BOX", Short: "Let refused traffic pass for a time, and log it", Long: policyAuditHelp,
		Example: "  gateway policy audit demo --for 4h\n  gateway policy learn demo > learned.yaml\n  gateway policy set demo @learned.yaml",
		Args:    cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			show := cli.Decoded(func(w io.Writer, e enforcement) error { return e.print(w) })
			timed := cmd.Flags().Changed("for")
			switch {
			case timed && end:
				return cli.Usagef("--for begins an audit and --end ends it: give one of them")
			case end:
				return o.Call(cmd, "PUT", enforcementPath(args[0]), map[string]any{"enforcement": "enforce"}, show)
			case !timed:
				return o.Call(cmd, "GET", enforcementPath(args[0]), nil, show)
			case lasts < time.Second || lasts > api.MaxAudit:
				return cli.Usagef("--for: give between a second and %d hours, such as 4h", int(api.MaxAudit.Hours()))
			}
			body := map[string]any{"enforcement": "audit", "expires_in": int64(lasts / time.Second)}
			return o.Call(cmd, "PUT", enforcementPath(args[0]), body, show)
		},
	}
	cli.MapFields(cmd, map[string]string{"/expires_in": "--for"})
	cli.Duration(cmd.Flags(), &lasts, "for", 0, "for this time, 24h at most")
	cmd.Flags().BoolVar(&end, "end", false, "enforce the policy again")
	return cmd
}

// learned is a proposed policy as the API returns it.
type learned struct {
	learn.Proposal
	Audited        bool      `json:"audited"`
	Overflow, Lost uint64    // decisions that were not considered
	Since          time.Time `json:"complete_since"`
}

const policyLearnHelp = `Proposes the least policy for the traffic of a box, with the evidence beside each entry. The policy of the box stays as it is.

The output is YAML that "policy set BOX @FILE" accepts. Entries that are easily misused are left out and listed at the end: addresses,
names that resemble others, background telemetry. Code in the box decides what it connects to, so read each line: a name that
you do not expect may be one that the code wants to be open.`

// newPolicyLearn is `gateway policy learn`.
func newPolicyLearn(o *cli.Options) *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use: "learn BOX", Short: "Propose the least policy for the traffic of the box", Long: policyLearnHelp,
		Example: "  gateway policy learn demo\n  gateway policy learn demo --since 4h > learned.yaml",
		Args:    cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := api.BoxPath(args[0], "egress/learned")
			if since != "" {
				path += "?" + url.Values{"since": {since}}.Encode()
			}
			return o.Call(cmd, "GET", path, nil, cli.Decoded(func(w io.Writer, l learned) error { return l.print(w, args[0]) }))
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "only destinations that were reached since then: a duration back from now (4h, 7d) or a time")
	return cmd
}

// print prints the proposal as YAML. Each value is JSON, which is YAML too, and the rest of its line a comment.
func (l *learned) print(w io.Writer, box string) error {
	var out strings.Builder
	fmt.Fprintf(&out, "# A policy for %s. Read it, then: gateway policy set %s @FILE\n", audit.Escape(box, 64), audit.Escape(box, 64))
	for _, note := range l.notes() {
		fmt.Fprintf(&out, "# %s\n", note)
	}
	if err := l.printPolicy(&out); err != nil {
		return err
	}
	if len(l.Apart) > 0 {
		out.WriteString("# Left out:\n")
	}
	for _, a := range l.Apart {
		fmt.Fprintf(&out, "#   %s: %s; %s\n", audit.Escape(a.Entry, 300), whyApart(a), evidence(a.Evidence))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// notes returns remarks about the whole proposal.
func (l *learned) notes() (notes []string) {
	if !l.Audited {
		notes = append(notes, "The policy is not audited now (gateway policy audit), so that the box reaches only allowed destinations.")
	}
	if !l.Since.IsZero() {
		notes = append(notes, fmt.Sprintf("Traffic before %s may be missing.", l.Since.UTC().Format(time.DateTime)))
	}
	if l.Overflow+l.Lost > 0 {
		notes = append(notes, fmt.Sprintf("INCOMPLETE: %s not considered, because there were too many.", cli.Count(int(l.Overflow+l.Lost), "decision was", "decisions were")))
	}
	if l.Omitted > 0 {
		notes = append(notes, fmt.Sprintf("INCOMPLETE: %s omitted, because there are too many; the earliest are listed.", cli.Count(l.Omitted, "entry is", "entries are")))
	}
	return notes
}

// policyKeys is the order of the keys of a proposed policy.
var policyKeys = []string{"mode", "precedence", "dns", "denied_names", "allowed_domains", "allowed_cidrs", "denied_domains", "denied_cidrs", "upstream_proxy", "repos", "rules"}

func (l *learned) printPolicy(out *strings.Builder) error {
	data, err := json.Marshal(l.Policy)
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	comments := map[string][]string{"allowed_domains": comments(l.Domains), "allowed_cidrs": comments(l.CIDRs), "rules": ruleComments(l.Requests)}
	for key := range fields {
		if !slices.Contains(policyKeys, key) {
			return fmt.Errorf("the gateway proposes a policy with %q, which this program does not know", key)
		}
	}
	for _, key := range policyKeys {
		if fields[key] == nil {
			continue
		}
		var list []json.RawMessage
		if json.Unmarshal(fields[key], &list) != nil {
			fmt.Fprintf(out, "%s: %s\n", key, fields[key])
			continue
		}
		fmt.Fprintf(out, "%s:\n", key)
		for i, element := range list {
			fmt.Fprintf(out, "  - %s", element)
			if i < len(comments[key]) {
				fmt.Fprintf(out, "  # %s", comments[key][i])
			}
			out.WriteByte('\n')
		}
	}
	return nil
}

func comments(lines []learn.Line) (out []string) {
	for _, l := range lines {
		out = append(out, evidence(l.Evidence))
	}
	return out
}

func ruleComments(lines []learn.Line) (out []string) {
	for _, l := range lines {
		if l.Count == 0 {
			out = append(out, audit.Escape(l.Entry, 80))
		} else {
			out = append(out, evidence(l.Evidence))
		}
	}
	return out
}

// evidence describes why an entry is proposed, in one line.
func evidence(e learn.Evidence) string {
	text := fmt.Sprintf("%s, %s to %s", cli.Count(int(e.Count), "time", "times"), e.First.UTC().Format(time.DateTime), e.Last.UTC().Format(time.DateTime))
	if e.NameN > 0 {
		text = fmt.Sprintf("%d names: %s; ", e.NameN, audit.Escape(strings.Join(e.Names, ", "), 300)) + text
	}
	if len(e.Refusals) > 0 {
		text += "; would be refused: " + audit.Escape(strings.Join(e.Refusals, ", "), 300)
	}
	return text
}

// whyApart explains why an entry is not in the proposed policy.
func whyApart(a learn.Apart) string {
	switch a.Why {
	case learn.WhyTelemetry:
		return "reports of programs, which work without"
	case learn.WhyLookAlike:
		return fmt.Sprintf("RESEMBLES %s", audit.Escape(a.Like, 100))
	case learn.WhyPunycode:
		return "PUNYCODE, may look like another name"
	case learn.WhyAddress:
		return "opens all ports of the address, under any name"
	}
	return audit.Escape(string(a.Why), 40)
}
