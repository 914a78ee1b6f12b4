package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/authority"
	"boxgate/policy/dialect"
	"boxgate/policy/name"
	"boxgate/policy/preset"
)

// newPolicyCommand is `gateway policy`.
func newPolicyCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("policy", "Show, change and query the network policy of a box")
	cmd.AddCommand(
		&cobra.Command{
			Use: "get BOX", Short: "Show the active policy", Args: cli.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.Call(cmd, "GET", api.BoxPath(args[0], "config/network-policy"), nil, cli.Indented)
			},
		},
		newPolicySet(o), newPolicyAmend(o, "allow"), newPolicyAmend(o, "deny"), newPolicyLeases(o), newPolicyEnd(o), newPolicyAudit(o), newPolicyLearn(o), newPolicyDiff(o), newPolicyReplay(o), newPolicyLint(o), newPolicyEdit(o), newPolicyHistory(o), newPolicyShow(o),
		newPolicyExplain(o), newPolicyPresets(o), newPolicyNamed(o), newPolicyConvert(),
	)
	return cmd
}

func newPolicyExplain(o *cli.Options) *cobra.Command {
	var protocol, method, path, query, content string
	var port uint16
	var headers []string
	var resolve bool
	cmd := &cobra.Command{
		Use:   "explain BOX HOST|IP",
		Short: "Show how the policy would decide, without connecting",
		Long: `Shows how the policy would decide, and what would change that. The gateway looks up a name as it would for the box, so that
protected addresses and names that do not exist are shown, but connects to nothing; --resolve=false asks about the name alone.`,
		Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"port": port, "protocol": protocol}
			if _, err := netip.ParseAddr(args[1]); err == nil {
				body["ip"] = args[1]
			} else {
				body["host"] = args[1]
				body["resolve"] = resolve
			}
			if method != "" {
				body["method"] = method
			}
			if path != "" {
				body["path"] = path
			}
			if cmd.Flags().Changed("query") {
				body["query"] = query
			}
			if cmd.Flags().Changed("header") {
				named := map[string]string{}
				for _, h := range headers {
					name, value, _ := strings.Cut(h, ":")
					named[name] = strings.TrimSpace(value)
				}
				body["headers"] = named
			}
			if cmd.Flags().Changed("body") {
				body["body"] = content
			}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "egress/explain"), body, func(w io.Writer, answer json.RawMessage) error {
				defer advise(cmd, o, args[0], args[1], answer)
				return cli.Indented(w, answer)
			})
		},
	}
	cli.MapFields(cmd, map[string]string{"/host": "HOST", "/ip": "IP", "/headers": "--header="})
	f := cmd.Flags()
	f.StringVar(&protocol, "protocol", "tcp", "tcp, udp or icmp")
	f.Uint16Var(&port, "port", 443, "destination port")
	f.BoolVar(&resolve, "resolve", true, "look a name up as for the box")
	f.StringVar(&method, "method", "", "HTTP method")
	f.StringVar(&path, "path", "", "HTTP path")
	f.StringVar(&query, "query", "", "HTTP query, without the question mark")
	f.StringVar(&content, "body", "", "body of an HTTP request, for rules on MCP and GraphQL messages; its Content-Type is JSON unless --header gives it")
	f.StringArrayVar(&headers, "header", nil, `HTTP header, as "Name: value"; give all that the rules depend on (may be repeated)`)
	return cmd
}

// advise prints the remedy for a denial to standard error.
func advise(cmd *cobra.Command, o *cli.Options, box, host string, answer json.RawMessage) {
	var e audit.Event
	var looked struct {
		LookupError string `json:"lookup_error"`
		Addresses   []struct {
			Address netip.Addr
			Verdict policy.Verdict
			Reason  name.Reason
		}
	}
	if json.Unmarshal(answer, &e) != nil || json.Unmarshal(answer, &looked) != nil || e.Verdict != policy.Deny {
		return
	}
	asked := cmd.Flags()
	port, _ := asked.GetUint16("port")
	protocol, _ := asked.GetString("protocol")
	e.BoxName, e.Box, e.Stage, e.Port, e.Protocol = box, policy.BoxID(box), policy.StageConn, port, policy.Protocol(protocol)
	if a, err := netip.ParseAddr(host); err == nil {
		e.Addr = a
	} else {
		e.Name = host
	}
	for _, a := range looked.Addresses {
		if a.Verdict == policy.Deny && a.Reason == e.Reason && e.Reason != name.ReasonNotAllowed {
			e.Addr = a.Address
			break
		}
	}
	text := remedy.For(e)
	var near nearMisses
	if client, err := o.Client(); err == nil {
		if miss := near.of(cmd.Context(), client, e); miss != "" {
			text = miss + "; " + text
		}
	}
	if looked.LookupError != "" && e.Reason == name.ReasonUnresolved {
		text = "the policy allows the name, but " + looked.LookupError + ": check its spelling, and dns.upstreams of the configuration"
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", e.Reason, text)
}

// policyState is the policy of a box as the API returns it.
type policyState struct {
	spec     policy.Spec
	named    string // the named policy that the box follows, if any
	version  json.Number
	warnings []cli.Warning
	leases   json.RawMessage // unparsed; nil if there are no leases
	answer   json.RawMessage // the whole answer
}

// readPolicy fetches the policy of a box.
func readPolicy(ctx context.Context, client *api.Client, box string) (policyState, error) {
	var answer json.RawMessage
	if err := client.Get(ctx, api.BoxPath(box, "config/network-policy"), &answer); err != nil {
		return policyState{}, err
	}
	return parsePolicyState(answer)
}

// parsePolicyState parses an answer that contains a policy.
func parsePolicyState(answer json.RawMessage) (policyState, error) {
	s := policyState{answer: answer}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(answer, &fields); err != nil {
		return s, fmt.Errorf("cannot parse the gateway's answer: %w", err)
	}
	_ = json.Unmarshal(fields["version"], &s.version)
	_ = json.Unmarshal(fields["warnings"], &s.warnings)
	_ = json.Unmarshal(fields["named"], &s.named)
	s.leases = fields["leases"]
	delete(fields, "named")
	delete(fields, "leases")
	delete(fields, "version")
	delete(fields, "warnings")
	doc, err := json.Marshal(fields)
	if err != nil {
		return s, err
	}
	// Strict parsing: a change based on a partly understood policy would lose the rest.
	if s.spec, err = dialect.ParseSpec(doc); err != nil {
		return s, fmt.Errorf("this program does not understand all of the gateway's policy; use the version that the gateway has: %w", err)
	}
	return s, nil
}

// entryAt returns the allowed entry at the pointer of a warning, or "" for other pointers.
func (s policyState) entryAt(pointer string) string {
	for list, entries := range map[string][]string{"/allowed_domains/": s.spec.AllowedDomains, "/allowed_cidrs/": s.spec.AllowedCIDRs} {
		index, ok := strings.CutPrefix(pointer, list)
		if i, err := strconv.Atoi(index); ok && err == nil && i >= 0 && i < len(entries) {
			return entries[i]
		}
	}
	return ""
}

// readOwnPolicy fetches the policy of a box in order to change it. It fails if the box follows a named policy, which
// other boxes may share.
func readOwnPolicy(ctx context.Context, client *api.Client, box string) (policyState, error) {
	s, err := readPolicy(ctx, client, box)
	if err == nil && s.named != "" {
		err = fmt.Errorf("the box follows the named policy %q, as others may. Change it for all of them with `gateway policy named set %s POLICY`, "+
			"allow or deny for a time with `gateway policy allow --for 1h` or `deny --for 1h`, or give the box a policy of its own with `gateway policy set %s POLICY`", s.named, s.named, box)
	}
	return s, err
}

// writePolicy replaces the policy of a box, provided it is still at the version that was read, and keeps its temporary
// entries. At a different version the policy stays and the error is a *[api.ResponseError] with status 412.
func writePolicy(ctx context.Context, client *api.Client, box string, spec policy.Spec, read policyState) (policyState, error) {
	body := struct {
		policy.Spec
		Version json.Number     `json:"version"` // like If-Match
		Leases  json.RawMessage `json:"leases,omitempty"`
	}{spec, read.version, read.leases}
	var answer json.RawMessage
	if err := client.Do(ctx, "PUT", api.BoxPath(box, "config/network-policy"), body, &answer); err != nil {
		return policyState{}, err
	}
	return parsePolicyState(answer)
}

// policyArgument parses and validates the policy in an argument, in any dialect.
func policyArgument(arg string, stdin io.Reader) (policy.Spec, error) {
	data, err := cli.PolicyArgument(arg, cli.BoxPolicyHelp, stdin)
	if err != nil {
		return policy.Spec{}, err
	}
	return dialect.ParseSpec(data)
}

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
	cli.MapFields(cmd, map[string]string{"/named": "POLICY"})
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

const namedHelp = `A named policy can be shared by many boxes, which follow it: "named:NAME" can be given to a box instead of a policy. When a change
succeeds, it applies to all these boxes; after an error it applies to no box. Temporary entries (leases) belong to each box
separately. A named policy cannot be removed while boxes follow it.

With --fleet it is one of the fleet: in force on all its hosts when the command ends.`

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
	var ofFleet bool
	set := &cobra.Command{
		Use: "set NAME POLICY", Short: "Make a named policy, or replace it for all boxes that follow it: " + cli.PolicyHelp, Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := cli.PolicyArgument(args[1], cli.PolicyHelp, cmd.InOrStdin())
			if err != nil {
				return err
			}
			return o.Call(cmd, "PUT", namedPath(args[0])+fleetQuery(ofFleet), data, func(w io.Writer, answer json.RawMessage) error {
				return cli.Decoded(func(w io.Writer, a namedAnswer) error {
					cli.PrintWarnings(cmd, a.Warnings)
					return printInForce(w, a)
				})(w, answer)
			})
		},
	}
	rm := &cobra.Command{
		Use: "rm NAME...", Short: "Remove named policies that no box follows", Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := o.Call(cmd, "DELETE", namedPath(name)+fleetQuery(ofFleet), nil, cli.Silent); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for _, sub := range []*cobra.Command{set, rm} {
		sub.Flags().BoolVar(&ofFleet, "fleet", false, "the policy of the fleet, on all its hosts")
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
	cmd.AddCommand(newPolicyNamedList(o), get, set, rm)
	return cmd
}

// newPolicyNamedList is `gateway policy named list`.
func newPolicyNamedList(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the named policies", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", namedPath(""), nil, cli.Decoded(func(w io.Writer, all []namedAnswer) error {
				for _, n := range all {
					for i := range n.Warnings {
						n.Warnings[i].Pointer = n.Name
					}
					cli.PrintWarnings(cmd, n.Warnings)
				}
				return printNamed(w, all)
			}))
		},
	}
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
	Fleet    bool          `json:"fleet"`
}

// fleetQuery asks for a change of the fleet's policy instead of this host's.
func fleetQuery(fleet bool) string {
	if fleet {
		return "?fleet=true"
	}
	return ""
}

// printInForce confirms a change of a named policy.
func printInForce(w io.Writer, a namedAnswer) error {
	boxes := cli.Count(len(a.Boxes), "box", "boxes")
	if a.Fleet {
		boxes += " of this host, and on all hosts of the fleet"
	}
	_, err := fmt.Fprintf(w, "Version %d of the policy %s is in force, for %s.\n", a.Version, a.Name, boxes)
	return err
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
	shared := slices.ContainsFunc(all, func(n namedAnswer) bool { return n.Fleet })
	if shared {
		rows[0] = append(rows[0], "OF")
	}
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
		row := []string{n.Name, strconv.FormatUint(n.Version, 10), string(spec.Mode), strings.Join(boxes, " ")}
		if shared {
			row = append(row, map[bool]string{true: "fleet", false: "host"}[n.Fleet])
		}
		rows = append(rows, row)
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

// newPolicyPresets is `gateway policy presets`. It needs no running gateway.
func newPolicyPresets(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "presets [NAME...]", Short: "List the presets, or show the hosts of some",
		Long: `Presets are lists of the hosts of well-known services. "preset:NAME,NAME" is a policy that allows exactly these hosts. The
presets are part of this program: a newer release may contain a newer version of a preset, with other hosts. Existing
policies made from a preset do not change with it.`,
		Example: "  gateway policy presets github\n  gateway box create --policy preset:github,pypi\n  gateway policy allow demo preset:npm",
		Args:    cli.MinArgs(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				return listPresets(cmd, o, preset.Names())
			}
			return showPresets(cmd, o, names)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return preset.Names(), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

func findPresets(names []string) ([]preset.Preset, error) {
	var all []preset.Preset
	for _, name := range names {
		p, err := preset.Find(strings.TrimPrefix(name, cli.PresetPrefix))
		if err != nil {
			return nil, cli.UsageError(err)
		}
		all = append(all, p)
	}
	return all, nil
}

func listPresets(cmd *cobra.Command, o *cli.Options, names []string) error {
	all, err := findPresets(names)
	if err != nil {
		return err
	}
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), all)
	}
	rows := [][]string{{"NAME", "VERSION", "HOSTS", "FOR"}}
	for _, p := range all {
		rows = append(rows, []string{p.Name, strconv.Itoa(p.Version), strconv.Itoa(len(p.AllowedDomains)), p.About})
	}
	return cli.Table(cmd.OutOrStdout(), rows...)
}

func showPresets(cmd *cobra.Command, o *cli.Options, names []string) error {
	all, err := findPresets(names)
	if err != nil {
		return err
	}
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), all)
	}
	var rows [][]string
	for _, p := range all {
		rows = append(rows, []string{p.Name + ":", p.About + " (version " + strconv.Itoa(p.Version) + ", from " + p.Source + ")"})
		for _, host := range p.AllowedDomains {
			rows = append(rows, []string{"", host})
		}
	}
	return cli.Table(cmd.OutOrStdout(), rows...)
}

// newPolicyDiff is `gateway policy diff`.
func newPolicyDiff(o *cli.Options) *cobra.Command {
	var exitCode bool
	cmd := &cobra.Command{
		Use: "diff BOX POLICY", Short: "Show what `gateway policy set` would change: " + cli.BoxPolicyHelp, Args: cli.ExactArgs(2),
		Long: `Shows what ` + "`gateway policy set`" + ` would change: ` + cli.BoxPolicyHelp + `.

BOX@7 is version 7 of the policy of a box, on either side: ` + "`gateway policy diff web-1@7 web-1@9`" + ` shows what changed from 7 to 9.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			next, err := policyOrNamed(cmd, client, args[1])
			if err != nil {
				return err
			}
			now, err := policyOrVersion(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			diff := amend.Diff(now.spec, next)
			var gain authority.Difference
			why := "" // the reason why it is unknown
			if !sameText(now.spec, next) {
				if gain, why, err = authorityOf(cmd.Context(), client, args[0], next); err != nil {
					return err
				}
			}
			if why != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "the difference in authority is not known: %s\n", why)
			}
			out := cmd.OutOrStdout()
			if o.JSON {
				view := map[string]any{"differences": append([]amend.Difference{}, diff...), "version": now.version}
				if why == "" {
					view["authority"] = gain
				}
				err = cli.WriteJSON(out, view)
			} else if err = printDiff(out, diff); err == nil {
				err = printAuthority(out, gain)
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

// policyOrVersion fetches the policy of a box, or of the version in the argument.
func policyOrVersion(ctx context.Context, client *api.Client, arg string) (policyState, error) {
	which, versioned := parseBoxVersion(arg)
	if !versioned {
		return readPolicy(ctx, client, arg)
	}
	spec, err := readVersionSpec(ctx, client, which)
	return policyState{spec: spec, version: json.Number(strconv.FormatUint(which.version, 10))}, err
}

// sameText reports whether two policies are written alike.
func sameText(a, b policy.Spec) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// policyOrNamed reads the policy in an argument, or the named policy or the version of a box's policy that the argument refers to.
func policyOrNamed(cmd *cobra.Command, client *api.Client, arg string) (policy.Spec, error) {
	if which, versioned := parseBoxVersion(arg); versioned {
		return readVersionSpec(cmd.Context(), client, which)
	}
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

// maxPolicyFile bounds the size of a policy to convert, in bytes.
const maxPolicyFile = 8 << 20

// newPolicyConvert is `gateway policy convert`. It needs no running gateway.
func newPolicyConvert() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "convert --from DIALECT --to DIALECT [FILE]",
		Short: "Convert a policy of another product to the dialect of boxgate, or the reverse",
		Long: `Reads a policy from FILE or standard input and writes it in another dialect, with the values of its headers.
The dialects are boxgate (also that of Upstash Box: a policy, or network_policy and attach_headers), vercel (the network
policy of Vercel Sandbox), e2b (the network options of E2B) and daytona (the network settings of Daytona). A policy that the other dialect cannot express is an error.`,
		Example: "  gateway policy convert --from e2b --to boxgate network.json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return cli.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return cli.FileError(err)
				}
				defer f.Close()
				in = f
			}
			data, err := io.ReadAll(io.LimitReader(in, maxPolicyFile))
			if err != nil {
				return err
			}
			out, err := dialect.Convert(data, dialect.Dialect(from), dialect.Dialect(to))
			if err != nil {
				return err
			}
			return cli.Indented(cmd.OutOrStdout(), json.RawMessage(out))
		},
	}
	cmd.Flags().StringVar(&from, "from", string(dialect.Boxgate), "dialect of FILE: boxgate, vercel, e2b or daytona")
	cmd.Flags().StringVar(&to, "to", string(dialect.Boxgate), "dialect to write")
	return cmd
}
