package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/boxes"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/config"
	"boxgate/llm"
	"boxgate/policy"
)

// newBoxCommand is `gateway box`.
func newBoxCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("box", "Create, list, use and remove boxes")
	cmd.AddCommand(newBoxCreate(o), newBoxList(o), newBoxGet(o), newBoxExec(o), newBoxShell(o))
	cmd.AddCommand(newBoxState(o, "pause", "Freeze boxes: they keep their memory and use no CPU"), newBoxState(o, "suspend", "Pause boxes as at their ends: their time stands still, and they stay paused until they are resumed"), newBoxState(o, "resume", "Resume paused boxes, and start boxes whose first process has ended"))
	cmd.AddCommand(newBoxCopy(o), newBoxSnapshot(o), newBoxSelfTest(o), newBoxTraffic(o), newBoxHAR(o), newBoxRemove(o), newBoxAttach(o), newBoxReattach(o), newBoxDetach(o), newBoxToken(o), newBoxInstallCA(o), newBoxSource(o), newBoxLimits(o), newBoxLabel(o), newBoxNetwork(o), newBoxTTL(o), newBoxOnEnd(o), newBoxMetadata(o), newBoxSamples(o))
	cmd.AddCommand(boxes.Commands(o, func(cmd *cobra.Command, label string) error { return listBoxes(cmd, o, label) })...)
	return cmd
}

func newBoxList(o *cli.Options) *cobra.Command {
	var label string
	var pairs []string
	cmd := &cobra.Command{
		Use: "list", Short: "List the boxes", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			metadata, err := metadataOf(pairs)
			if err != nil {
				return err
			}
			return o.Call(cmd, "GET", api.SelectionPath(label, metadata), nil, cli.Decoded(printBoxes))
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "only boxes with this label")
	cmd.Flags().StringArrayVar(&pairs, "metadata", nil, "only boxes with this entry of metadata, KEY=VALUE (may be repeated)")
	return cmd
}

// metadataOf reads entries of metadata from arguments KEY=VALUE.
func metadataOf(pairs []string) (map[string]string, error) {
	entries := map[string]string{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if _, twice := entries[key]; !ok || key == "" || twice {
			return nil, cli.Usagef("%q: metadata is KEY=VALUE, with different keys", pair)
		}
		entries[key] = value
	}
	return entries, nil
}

// newBoxMetadata is `gateway box metadata`.
func newBoxMetadata(o *cli.Options) *cobra.Command {
	var clear bool
	cmd := &cobra.Command{
		Use: "metadata BOX [KEY=VALUE...]", Short: "Replace the metadata of a box, or print it", Args: cli.MinArgs(1),
		Example: "  gateway box metadata demo user=42 stage=test\n  gateway box metadata demo --clear\n  gateway box list --metadata user=42",
		RunE: func(cmd *cobra.Command, args []string) error {
			entries, err := metadataOf(args[1:])
			if err != nil {
				return err
			}
			if clear && len(entries) > 0 {
				return cli.Usagef("--clear removes all entries; leave out %s", args[1])
			}
			method, path, body := "GET", api.BoxPath(args[0]), any(nil)
			if clear || len(entries) > 0 {
				method, path, body = "PUT", api.BoxPath(args[0], "config/metadata"), map[string]any{"metadata": entries}
			}
			return o.Call(cmd, method, path, body, cli.Decoded(func(w io.Writer, is struct{ Metadata map[string]string }) error {
				var rows [][]string
				for _, key := range slices.Sorted(maps.Keys(is.Metadata)) {
					rows = append(rows, []string{cli.Prose(oneLine(key)), cli.Prose(oneLine(is.Metadata[key]))})
				}
				return cli.Table(w, rows...)
			}))
		},
	}
	cli.MapFields(cmd, map[string]string{"/metadata": "KEY=VALUE"})
	cmd.Flags().BoolVar(&clear, "clear", false, "remove all entries")
	return cmd
}

// listBoxes prints the boxes: all of them, or those with a label.
func listBoxes(cmd *cobra.Command, o *cli.Options, label string) error {
	return o.Call(cmd, "GET", api.BoxesPath(label), nil, cli.Decoded(printBoxes))
}

func newBoxGet(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "get BOX", Short: "Show one box", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", api.BoxPath(args[0]), nil, cli.Indented)
		},
	}
}

// newBoxState is `gateway box pause`, `suspend` or `resume`.
func newBoxState(o *cli.Options, call, short string) *cobra.Command {
	return &cobra.Command{
		Use: call + " BOX...", Short: short, Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, box := range args {
				err := o.Call(cmd, "POST", api.BoxPath(box, call), nil, cli.Decoded(func(w io.Writer, b boxAnswer) error {
					return cli.Table(w, []string{b.ID, b.Status})
				}))
				if err != nil {
					return fmt.Errorf("%s: %w", box, err)
				}
			}
			return nil
		},
	}
}

// boxAnswer holds the fields of a box that the commands print.
type boxAnswer struct {
	ID, Name, Status, Size, Runtime, IPv4, IPv6, Error string
	Labels                                             []string
	Attached                                           *api.Attached
	NetworkPolicy                                      struct{ Mode string } `json:"network_policy"`
	AuditedUntil                                       int64                 `json:"policy_audited_until"`
	ExpiresAt                                          int64                 `json:"expires_at"`
	Warnings                                           []cli.Warning
}

func (b boxAnswer) row() []string {
	return []string{b.ID, b.Name, b.Status, b.Size, b.NetworkPolicy.Mode + auditedMark(b.AuditedUntil), b.IPv4, b.IPv6}
}

// auditedMark marks a policy that is audited instead of enforced until a time; 0: it is enforced.
func auditedMark(until int64) string {
	if until == 0 {
		return ""
	}
	return " (audited)"
}

var boxHeading = []string{"ID", "NAME", "STATUS", "SIZE", "POLICY", "IPV4", "IPV6"}

// attachment returns by what a box is attached; "-" if it was launched.
func (b boxAnswer) attachment() string {
	if b.Attached == nil {
		return "-"
	}
	if b.Attached.Kind == api.AttachRemote && b.Attached.Remote != nil && b.Attached.Remote.TokenExpiresAt == 0 {
		return "remote (no token)"
	}
	words := b.Attached.Kind + " " + b.Attached.Runtime + " " + cmp.Or(b.Attached.Pod, b.Attached.Ref)
	if t := b.Attached.Tap; t != nil && b.Attached.Kind != api.AttachTap {
		words += " tap " + t.Name
	}
	return strings.Join(strings.Fields(words), " ")
}

// end returns when the box is deleted; "-" for never.
func (b boxAnswer) end() string {
	if b.ExpiresAt == 0 {
		return "-"
	}
	return clockTime(b.ExpiresAt)
}

// printBoxes prints boxes as a table, with columns of labels, ends and attachments if any box has them.
func printBoxes(w io.Writer, boxes []boxAnswer) error {
	labelled := slices.ContainsFunc(boxes, func(b boxAnswer) bool { return len(b.Labels) > 0 })
	heading := boxHeading
	if labelled {
		heading = append(slices.Clone(heading), "LABELS")
	}
	ending := slices.ContainsFunc(boxes, func(b boxAnswer) bool { return b.ExpiresAt != 0 })
	if ending {
		heading = append(slices.Clone(heading), "ENDS")
	}
	attached := slices.ContainsFunc(boxes, func(b boxAnswer) bool { return b.Attached != nil })
	if attached {
		heading = append(slices.Clone(heading), "ATTACHED")
	}
	rows := [][]string{heading}
	for _, b := range boxes {
		row := b.row()
		if labelled {
			row = append(row, cmp.Or(strings.Join(b.Labels, ","), "-"))
		}
		if ending {
			row = append(row, b.end())
		}
		if attached {
			row = append(row, b.attachment())
		}
		rows = append(rows, row)
	}
	return cli.Table(w, rows...)
}

// newBoxAnswer prints a box that cmd created, and the warnings about it.
func newBoxAnswer(cmd *cobra.Command) cli.Render {
	return cli.Decoded(func(w io.Writer, b boxAnswer) error {
		cli.PrintWarnings(cmd, b.Warnings)
		if err := printBoxes(w, []boxAnswer{b}); err != nil || b.Attached == nil {
			return err
		}
		return printTap(w, b.Attached.Tap)
	})
}

// printTap prints how a virtual machine has to configure its network; nil: it has no tap.
func printTap(w io.Writer, t *api.Tap) error {
	if t == nil {
		return nil
	}
	rows := [][]string{{""}, {"tap", t.Name}, {"MAC", t.MAC}}
	for i, a := range t.Addresses {
		rows = append(rows, []string{"address", a.String()}, []string{"route", "default via " + t.Gateways[i].String()})
	}
	return cli.Table(w, append(rows, []string{"DNS", t.Gateways[0].String()}, []string{"kernel", t.KernelIP})...)
}

// newBoxLabel is `gateway box label`.
func newBoxLabel(o *cli.Options) *cobra.Command {
	var removed []string
	cmd := &cobra.Command{
		Use: "label BOX [LABEL...] [--rm LABEL]", Short: "Add and remove labels of a box, or print them", Args: cli.MinArgs(1),
		Example: "  gateway box label demo team=x stage:test\n  gateway box label demo --rm team=x\n  gateway box list --label team=x",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			for _, label := range removed {
				if err := client.Do(cmd.Context(), "DELETE", api.BoxPath(args[0], "config/labels", url.PathEscape(label)), nil, nil); err != nil {
					return fmt.Errorf("%s: %w", label, err)
				}
			}
			for _, label := range args[1:] {
				if err := client.Do(cmd.Context(), "POST", api.BoxPath(args[0], "config/labels"), map[string]string{"label": label}, nil); err != nil {
					return fmt.Errorf("%s: %w", label, err)
				}
			}
			return o.Call(cmd, "GET", api.BoxPath(args[0]), nil, func(w io.Writer, answer json.RawMessage) error {
				var box boxAnswer
				if err := json.Unmarshal(answer, &box); err != nil || len(box.Labels) == 0 {
					return err
				}
				_, err := fmt.Fprintln(w, strings.Join(box.Labels, "\n"))
				return err
			})
		},
	}
	cli.MapFields(cmd, map[string]string{"/label": "LABEL"})
	cmd.Flags().StringArrayVar(&removed, "rm", nil, "label to remove (may be repeated); removed before others are added")
	return cmd
}

// boxesWith fetches the boxes that have a label. No such box is an error.
func boxesWith(ctx context.Context, client *api.Client, label string) ([]boxAnswer, error) {
	var boxes []boxAnswer
	if err := client.Get(ctx, api.BoxesPath(label), &boxes); err != nil {
		return nil, err
	}
	if len(boxes) == 0 {
		return nil, fmt.Errorf("no box has the label %q; `gateway box list` shows the labels", label)
	}
	return boxes, nil
}

// labelSelection selects the decisions of boxes with a label. A box counts if it had the label when its first decision
// was seen. Not safe for concurrent use.
type labelSelection struct {
	label string
	seen  map[string]bool // by ID: whether the box has the label
}

// contains reports whether a box has the label. It fetches the boxes again for an unknown ID.
func (s *labelSelection) contains(ctx context.Context, client *api.Client, box string) (bool, error) {
	if has, known := s.seen[box]; known || box == "" {
		return has, nil
	}
	var boxes []boxAnswer
	if err := client.Get(ctx, api.BoxesPath(s.label), &boxes); err != nil {
		return false, err
	}
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	s.seen[box] = false
	for _, b := range boxes {
		s.seen[b.ID] = true
	}
	return s.seen[box], nil
}

// limitHelp is the help text of --limit.
const limitHelp = "LIMIT=NUMBER for this box, such as connections=100, memory=64MiB or model=5usd/day; may be repeated (docs/limits.md)"

// newBoxLimits is `gateway box limits`.
func newBoxLimits(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limits BOX [LIMIT=NUMBER...]",
		Short: "Show or change the limits of a box; LIMIT=default restores the configured one",
		Args:  cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := limitsOf(args[1:])
			if err != nil {
				return err
			}
			path := api.BoxPath(args[0], "config", "limits")
			if len(set) == 0 {
				return o.Call(cmd, "GET", path, nil, cli.Decoded(printLimits))
			}
			return o.Call(cmd, "PATCH", path, map[string]any{"limits": set}, cli.Decoded(printLimits))
		},
	}
	cli.MapFields(cmd, map[string]string{"/limits": "LIMIT="})
	return cmd
}

// limitsOf parses LIMIT=NUMBER arguments. Limits in bytes may have a unit, as in the configuration.
func limitsOf(args []string) (map[string]any, error) {
	set := map[string]any{}
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		limit, known := policy.LimitNamed(name)
		if ok && name == "model" {
			model, err := parseModelLimit(text)
			if err != nil {
				return nil, err
			}
			set[name] = model
			continue
		}
		switch {
		case !ok:
			return nil, cli.Usagef("%q is not LIMIT=NUMBER", arg)
		case !known:
			return nil, cli.Usagef("%q is no limit that a box can have of its own; there are %s and model", name, policy.LimitNames())
		case text == "default":
			set[name] = nil
			continue
		}
		var n config.Size
		if limit.Bytes() {
			if err := n.UnmarshalText([]byte(text)); err != nil {
				return nil, cli.Usagef("%s: %v", name, err)
			}
		} else {
			count, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, cli.Usagef("%s: %q is not a whole number", name, text)
			}
			n = config.Size(count)
		}
		set[name] = int64(n)
	}
	return set, nil
}

// limitsAnswer are the limits of a box as the API returns them.
type limitsAnswer struct {
	Limits, Operator, Own map[string]int64
	Model                 struct {
		Limits        []llm.Limit
		Operator, Own *llm.Limit
	}
}

func printLimits(w io.Writer, a limitsAnswer) error {
	rows := [][]string{{"LIMIT", "VALUE", "SET BY"}}
	for _, limit := range policy.AllLimits() {
		name := limit.String()
		by := "configuration"
		if n, ok := a.Operator[name]; ok && n == a.Limits[name] {
			by = "operator"
		}
		if n, ok := a.Own[name]; ok && n == a.Limits[name] {
			by = "key"
		}
		rows = append(rows, []string{name, shownLimit(limit, a.Limits[name]), by})
	}
	for _, l := range a.Model.Limits {
		by := "configuration"
		if a.Model.Operator != nil && *a.Model.Operator == l {
			by = "operator"
		}
		if a.Model.Own != nil && *a.Model.Own == l {
			by = "key"
		}
		rows = append(rows, []string{"model", l.String(), by})
	}
	if len(a.Model.Limits) == 0 {
		rows = append(rows, []string{"model", "none", "configuration"})
	}
	return cli.Table(w, rows...)
}

func shownLimit(limit policy.Limit, n int64) string {
	switch {
	case n == 0:
		return "none"
	case limit.Bytes():
		return config.Size(n).String()
	}
	return strconv.FormatInt(n, 10)
}

// newBoxSource is `gateway box source`.
func newBoxSource(o *cli.Options) *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:   "source BOX (ADDRESS [ADDRESS] | --none)",
		Short: "Set the addresses from network.sources that a box's traffic leaves from; open connections are cut",
		Args:  cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list := append([]string{}, args[1:]...)
			if none == (len(list) > 0) {
				return cli.Usagef("give one or two addresses, or --none")
			}
			body := map[string]any{"source_addresses": list}
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config", "source-addresses"), body, cli.Decoded(func(w io.Writer, set struct {
				Addresses []string `json:"source_addresses"`
			}) error {
				var rows [][]string
				for _, a := range set.Addresses {
					rows = append(rows, []string{a})
				}
				return cli.Table(w, rows...)
			}))
		},
	}
	cli.MapFields(cmd, map[string]string{"/source_addresses": "ADDRESS"})
	cmd.Flags().BoolVar(&none, "none", false, "let the host choose")
	return cmd
}

// boxRemove holds the flags of `gateway box rm`.
type boxRemove struct {
	o                   *cli.Options
	all, yes, recursive bool
	user                string
}

func newBoxRemove(o *cli.Options) *cobra.Command {
	r := boxRemove{o: o}
	cmd := &cobra.Command{
		Use: "rm BOX... | BOX:PATH... | --all", Short: "Stop boxes and remove all their data, or remove files of boxes", Args: cli.MinArgs(0),
		Example:           "  gateway box rm demo                   # the box\n  gateway box rm -r demo:build demo:log  # a directory and a file of it",
		ValidArgsFunction: completeArguments(o, []string{"rm", "BOX..."}),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := boxes.AreFiles(args)
			switch {
			case err != nil:
				return err
			case r.all && len(args) > 0:
				return cli.Usagef("give boxes or --all, not both")
			case r.all:
				return r.removeAll(cmd)
			case len(args) == 0:
				return cli.MinArgs(1)(cmd, args)
			case files:
				return boxes.RemoveFiles(cmd, o, args, r.recursive, r.user)
			case r.recursive:
				return cli.Usagef("--recursive is for files of boxes: BOX:PATH")
			case r.user != "":
				return cli.Usagef("--user is for files of boxes: BOX:PATH")
			}
			var errs []error
			for _, box := range args {
				errs = append(errs, r.remove(cmd, box))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&r.all, "all", false, "remove every box, after asking")
	cmd.Flags().BoolVar(&r.yes, "yes", false, "with --all: do not ask")
	cmd.Flags().BoolVarP(&r.recursive, "recursive", "r", false, "with BOX:PATH: remove directories with their contents")
	boxes.UserFlag(cmd, &r.user)
	return cmd
}

func (r *boxRemove) remove(cmd *cobra.Command, box string) error {
	if err := r.o.Call(cmd, "DELETE", api.BoxPath(box), nil, cli.Silent); err != nil {
		return fmt.Errorf("%s: %w", box, err)
	}
	return nil
}

// removeAll removes all boxes and continues after a failure.
func (r *boxRemove) removeAll(cmd *cobra.Command) error {
	client, err := r.o.Client()
	if err != nil {
		return err
	}
	var all []boxAnswer
	if err := client.Get(cmd.Context(), "/v2/box", &all); err != nil {
		return err
	}
	if len(all) == 0 {
		return nil
	}
	if err := r.confirm(cmd, all); err != nil {
		return err
	}
	var errs []error
	for _, b := range all {
		errs = append(errs, r.remove(cmd, b.ID))
	}
	return errors.Join(errs...)
}

// confirm asks at a terminal whether to remove the boxes. Without a terminal, --yes is required.
func (r *boxRemove) confirm(cmd *cobra.Command, boxes []boxAnswer) error {
	var names []string
	for _, b := range boxes {
		names = append(names, strings.TrimSpace(b.ID+" "+b.Name))
	}
	return confirmAll(cmd, r.yes, cli.Count(len(boxes), "box", "boxes"), " with all files", names)
}

// confirmAll asks at a terminal whether to remove everything that is named. Without a terminal, --yes is required.
func confirmAll(cmd *cobra.Command, yes bool, count, more string, names []string) error {
	if yes {
		return nil
	}
	if terminal.Of(cmd.InOrStdin()) == nil {
		return cli.Usagef("--all removes %s and cannot ask here: give --yes as well", count)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Remove %s%s: %s? [y/N] ", count, more, strings.Join(names, ", "))
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(answer)); err != nil || a != "y" && a != "yes" {
		return errors.New("nothing was removed")
	}
	return nil
}

// selfTestCard is the scorecard as the API returns it.
type selfTestCard struct {
	Box, Mode     string
	Tight         bool
	Status        api.SelfTestStatus
	Reason        string
	PolicyVersion uint64 `json:"policy_version"`
	DurationMS    int64  `json:"duration_ms"`
	Summary       struct {
		Tight, Holes, Skipped int
		NotRun                int `json:"not_run"`
	}
	Probes []struct{ Group, Attack, Family, Target, Expected, Seen, Verdict, Why string }
}

// newBoxSelfTest is `gateway box selftest`.
func newBoxSelfTest(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "selftest BOX",
		Short: "Attack the gateway from inside a box and print a scorecard; exits with 0 only if the box is tight, and with 3 if it cannot be tested",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := client.Do(cmd.Context(), "POST", api.BoxPath(args[0], "selftest"), nil, &answer); err != nil {
				return err
			}
			var card selfTestCard
			if err := json.Unmarshal(answer, &card); err != nil {
				return fmt.Errorf("cannot parse the gateway's answer: %w", err)
			}
			if o.JSON {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), string(answer))
			} else {
				err = printCard(cmd.OutOrStdout(), card)
			}
			if err != nil {
				return err
			}
			return card.failure(args[0])
		},
	}
}

// failure returns the command's error: nil only for a box that was tested and is tight.
func (c *selfTestCard) failure(box string) error {
	if c.Status == api.SelfTestUntestable {
		return cli.StatusError{Status: cli.ExitUntestable, Err: fmt.Errorf("box %s cannot be tested from here", box)}
	}
	if !c.Tight {
		return fmt.Errorf("box %s is not tight, or could not be tested fully; see the lines marked HOLE or NOT RUN", box)
	}
	return nil
}

// verdictWords maps verdicts to their printed form. Verdicts that need attention are in capitals.
var verdictWords = map[string]string{"tight": "tight", "hole": "HOLE", "not_run": "NOT RUN", "skipped": "-"}

// printCard prints a line for each probe, then a summary.
func printCard(w io.Writer, card selfTestCard) error {
	if card.Status == api.SelfTestUntestable {
		_, err := fmt.Fprintf(w, "box %s, policy %s version %d: CANNOT BE TESTED FROM HERE, nothing was tried. Run attacks inside the sandbox "+
			"instead. Reason: %s\n", card.Box, card.Mode, card.PolicyVersion, card.Reason)
		return err
	}
	if err := cli.Table(w, card.rows()...); err != nil {
		return err
	}
	word := "TIGHT"
	if !card.Tight {
		word = "NOT TIGHT"
	}
	_, err := fmt.Fprintf(w, "\nbox %s, policy %s version %d: %s. %d tight, %s, %d not run, %d skipped; %.1f s\n",
		card.Box, card.Mode, card.PolicyVersion, word, card.Summary.Tight, cli.Count(card.Summary.Holes, "hole", "holes"), card.Summary.NotRun,
		card.Summary.Skipped, float64(card.DurationMS)/1000)
	return err
}

// rows returns the probes below a heading.
func (c *selfTestCard) rows() [][]string {
	rows := [][]string{{"VERDICT", "GROUP", "ATTACK", "FAMILY", "TARGET", "EXPECTED", "SEEN"}}
	for _, p := range c.Probes {
		seen := p.Seen
		switch {
		case p.Why == "":
		case p.Verdict == "skipped":
			seen = p.Why
		default:
			seen = p.Why + " (" + p.Seen + ")"
		}
		rows = append(rows, []string{verdictWords[p.Verdict], p.Group, p.Attack, p.Family, p.Target, p.Expected, seen})
	}
	return rows
}
