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
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/story"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// logFlags holds the flags of `gateway log` that select decisions.
type logFlags struct {
	box, host, label string
	window           cli.Window
	summary, verbose bool
}

// newLogCommand is `gateway log`.
func newLogCommand(o *cli.Options) *cobra.Command {
	r, flags := &logReader{o: o}, &logFlags{}
	cmd := &cobra.Command{
		Use:   "log [-f] [--box B | --label L] [--denied] [--reason R] [--since T] [--until T] [--host H] [--summary] [--verbose]",
		Short: "Print decisions, with -f also new ones",
		Long: `Prints decisions, with -f also new ones. One request is one line: a look-up is printed only if no connection to the name
follows, unless --verbose or --json is given. FAIL is a server that did not answer, or not properly; none, a name that does not exist.`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := r.prepare(cmd, flags); err != nil {
				return err
			}
			defer r.joiner.Flush()
			if r.following {
				r.query.Set("follow", "true")
				return r.follow(cmd.Context())
			}
			var err error
			if r.query.Has("since") || r.query.Has("until") || flags.host != "" {
				err = r.search(cmd.Context(), flags.host)
			} else {
				err = r.read(cmd.Context())
			}
			if err == nil && r.summary != nil {
				err = r.printSummary()
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&r.following, "follow", "f", false, "keep printing new decisions")
	f.BoolVar(&r.denied, "denied", false, "denials only")
	f.BoolVar(&flags.summary, "summary", false, "only how often each box was refused each destination, the most frequent first")
	f.BoolVar(&flags.verbose, "verbose", false, "also the look-ups whose connections are printed")
	f.StringVar(&r.reason, "reason", "", "only decisions with this reason")
	f.StringVar(&flags.box, "box", "", "ID or name of a box (default: every box)")
	f.StringVar(&flags.label, "label", "", "only boxes that have this label now")
	flags.window.AddFlags(f, " in the decisions on disk (default: all decisions in memory)")
	f.StringVar(&flags.host, "host", "", "only decisions about this name, *.NAME for all names below it, or address")
	cli.Duration(f, &r.patience, "reconnect", time.Minute, "with -f: how long to wait for a gateway that has stopped")
	return cmd
}

// prepare checks the flags and sets the request.
func (r *logReader) prepare(cmd *cobra.Command, flags *logFlags) error {
	if r.reason != "" && !slices.Contains(name.Reasons(), name.Reason(r.reason)) {
		return cli.Usagef("there is no reason %q; %s", r.reason, nearReasons(r.reason))
	}
	r.cmd, r.path, r.query = cmd, "/v2/egress", url.Values{}
	r.joiner, r.verbose = story.New(r.following, r.printDecision), flags.verbose
	if flags.box != "" {
		r.path = api.BoxPath(flags.box, "egress")
	}
	if flags.label != "" {
		if flags.box != "" {
			return cli.Usagef("give --box or --label, not both")
		}
		r.selection = &labelSelection{label: flags.label}
	}
	if flags.summary {
		if r.following {
			return cli.Usagef("--summary is about decisions that were made; leave out -f")
		}
		r.denied, r.summary = true, &logSummary{}
	}
	if r.denied {
		r.query.Set("denied", "true")
	}
	if err := flags.window.Set(r.query); err != nil {
		return err
	}
	if r.following && (r.query.Has("until") || flags.host != "") {
		return cli.Usagef("--until and --host are for decisions that were made; leave out -f")
	}
	return nil
}

// maxNear bounds the number of suggested reasons.
const maxNear = 6

// nearReasons suggests reasons for an unknown word: the nearest spelling first, then reasons that share a part of the
// word.
func nearReasons(word string) string {
	word = strings.ToLower(strings.ReplaceAll(word, "-", "_"))
	known := map[string]bool{}
	var near []string
	for _, reason := range name.Reasons() {
		known[string(reason)] = true
	}
	if best := document.Nearest(word, known); best != "" {
		near = append(near, best)
	}
	for _, reason := range slices.Sorted(maps.Keys(known)) {
		shares := slices.ContainsFunc(strings.Split(word, "_"), func(part string) bool {
			stem := strings.TrimSuffix(strings.TrimSuffix(part, "ied"), "y") // so that denied matches deny
			return len(stem) >= 3 && strings.Contains(reason, stem)
		})
		if shares && !slices.Contains(near, reason) && len(near) < maxNear {
			near = append(near, reason)
		}
	}
	if len(near) == 0 {
		return "docs/reasons.md lists them, and `gateway log --denied` shows those of the latest denials"
	}
	return "did you mean " + strings.Join(near, ", ") + "?"
}

// logReader prints decisions.
type logReader struct {
	o                 *cli.Options
	cmd               *cobra.Command
	path              string
	query             url.Values
	following, denied bool
	reason            string // only this reason; "" for all
	patience          time.Duration
	selection         *labelSelection // nil: every box
	summary           *logSummary     // nil: every decision is printed

	client    *api.Client     // of the open stream
	connected bool            // a stream was opened at least once
	run       string          // ID of the gateway's run that made these decisions
	seq       uint64          // number of the last decision received
	advised   map[string]bool // remedies already printed
	near      nearMisses
	asking    asking

	joiner   *story.Joiner
	verbose  bool
	mu       sync.Mutex // for the output and printErr: the joiner also prints when a look-up has waited long enough
	printErr error      // the first error while writing the output
}

// read prints one stream to its end.
func (r *logReader) read(ctx context.Context) error {
	client, err := r.o.Client() // opened each time, because the key may have changed
	if err != nil {
		return err
	}
	r.client = client
	begin := func(run string) {
		r.connected = true
		if r.run != run {
			r.run, r.seq = run, 0
		}
	}
	return client.Events(ctx, r.path+"?"+r.query.Encode(), begin, func(line []byte) error {
		return r.print(line)
	})
}

// search prints the decisions on disk, or those in memory if the gateway keeps no history on disk.
func (r *logReader) search(ctx context.Context, host string) error {
	query, path := r.query, r.path
	r.query = maps.Clone(query)
	r.path += "/history"
	for name, value := range map[string]string{"host": host, "reason": r.reason} {
		if value != "" {
			r.query.Set(name, value)
		}
	}
	err := r.readHistory(ctx, query.Get("since"))
	refused, ok := errors.AsType[*api.ResponseError](err)
	if ok && refused.Status == http.StatusConflict && host == "" && !query.Has("until") {
		r.query, r.path = query, path
		return r.read(ctx)
	}
	return err
}

// readHistory prints decisions on disk. If the complete part of the history starts later than requested, it reports that.
func (r *logReader) readHistory(ctx context.Context, since string) error {
	client, err := r.o.Client()
	if err != nil {
		return err
	}
	r.client = client
	begin := func(whole time.Time) {
		from, _ := time.Parse(time.RFC3339Nano, since)
		if whole.After(from) {
			fmt.Fprintf(r.cmd.ErrOrStderr(), "gateway: the history is whole from %s on; earlier decisions may be missing\n", whole.Local().Format(time.RFC3339))
		}
	}
	return client.History(ctx, r.path+"?"+r.query.Encode(), begin, func(line []byte) error {
		return r.print(line)
	})
}

// follow prints decisions until ctx ends. If the stream ends because the gateway restarts, it waits for the gateway and
// continues after the last decision printed.
func (r *logReader) follow(ctx context.Context) error {
	const shortest, longest = 100 * time.Millisecond, 2 * time.Second
	pause, until := shortest, time.Time{}
	for {
		r.connected = false
		err := r.read(ctx)
		if ctx.Err() != nil || r.failed() != nil || isFinal(err) || !r.connected && until.IsZero() {
			return err
		}
		if r.connected { // and the stream ended since
			pause, until = shortest, time.Now().Add(r.patience)
			fmt.Fprintln(r.cmd.ErrOrStderr(), "gateway: the stream of decisions ended; waiting for the gateway")
		}
		if !time.Now().Add(pause).Before(until) {
			return fmt.Errorf("the gateway ended the stream of decisions and did not come back within %v: %w", r.patience, orEnded(err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
		r.resume()
	}
}

// resume requests the decisions after the last one printed.
func (r *logReader) resume() {
	if r.run != "" {
		r.query.Set("after", r.run+"-"+strconv.FormatUint(r.seq, 10))
	}
}

// isFinal reports whether retrying is pointless, because the key is refused or the box does not exist.
func isFinal(err error) bool {
	refused, ok := errors.AsType[*api.ResponseError](err)
	return ok && refused.Status < http.StatusInternalServerError && refused.Status != http.StatusTooManyRequests
}

func orEnded(err error) error {
	if err == nil {
		return errors.New("the stream ended")
	}
	return err
}

// print prints a line of the stream: the JSON itself, or columns for people. A line that is not a decision (such as the
// number of events that a slow reader lost) is printed unchanged.
func (r *logReader) print(line []byte) error {
	var e audit.Event
	decision := json.Unmarshal(line, &e) == nil && !e.Time.IsZero()
	if decision {
		r.seq = max(r.seq, e.Seq)
	}
	if decision && r.reason != "" && e.Reason != name.Reason(r.reason) {
		return nil
	}
	if decision && r.selection != nil {
		if has, err := r.selection.contains(r.cmd.Context(), r.client, string(e.Box)); err != nil || !has {
			return err
		}
	}
	if r.summary != nil {
		r.summary.add(e, decision)
		return nil
	}
	switch {
	case r.o.JSON || !decision:
		r.write(r.cmd.OutOrStdout(), string(line))
	case r.verbose:
		r.printDecision(e)
	default:
		r.joiner.Add(e)
	}
	return r.failed()
}

// write prints a line, unless printing has failed before.
func (r *logReader) write(w io.Writer, line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.printErr == nil {
		_, r.printErr = fmt.Fprintln(w, line)
	}
}

// failed returns the error while writing the output.
func (r *logReader) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.printErr
}

// printDecision prints a decision in columns, and what to do about it.
func (r *logReader) printDecision(e audit.Event) {
	text := audit.Line(e)
	if cli.Coloured(r.cmd.OutOrStdout()) {
		text = cli.PaintFirst(text, "DENY", "FAIL", "allow")
	}
	r.write(r.cmd.OutOrStdout(), text)
	r.advise(e)
}

// maxAdvised bounds the remedies that are remembered, since boxes choose the names.
const maxAdvised = 10000

// advise prints the remedy below the first denial of each host and port. It goes to standard error so as not to disturb the columns.
func (r *logReader) advise(e audit.Event) {
	text, label := remedy.For(e), string(e.Reason)
	if text == "" || len(r.advised) >= maxAdvised {
		return
	}
	if e.RCode == audit.NXDomain {
		label = e.RCode
	}
	key := label + " " + text
	if o, ok := remedy.OpeningOf(e); ok { // whether it is for the look-up or the connection
		key = string(e.Box) + " " + o.Entry
	}
	if r.advised[key] {
		return
	}
	if r.advised == nil {
		r.advised = map[string]bool{}
	}
	r.advised[key] = true
	if near := r.near.of(r.cmd.Context(), r.client, e); near != "" {
		text = near + "; " + text
	}
	if asked := r.asking.of(r.cmd.Context(), r.client, e); asked != "" {
		text += "; " + asked
	}
	r.write(r.cmd.ErrOrStderr(), "  "+label+": "+text)
}

// nearMisses finds the entries of policies that nearly allow a denied destination. The zero value is ready to use.
type nearMisses struct {
	policies map[policy.BoxID]policy.Spec // of the boxes asked about
	read     time.Time                    // when the oldest of them was read
}

// nearMissAge is how long a policy that was read is used.
const nearMissAge = 10 * time.Second

// of returns the near miss of a denial under the box's current policy, or "".
func (n *nearMisses) of(ctx context.Context, client *api.Client, e audit.Event) string {
	if e.Verdict != policy.Deny || e.Reason != name.ReasonNotAllowed || e.Box == "" || e.Name == "" {
		return ""
	}
	if n.policies == nil || time.Since(n.read) > nearMissAge {
		n.policies, n.read = map[policy.BoxID]policy.Spec{}, time.Now()
	}
	spec, ok := n.policies[e.Box]
	if !ok {
		state, err := readPolicy(ctx, client, string(e.Box))
		if err == nil {
			spec = state.spec
		}
		n.policies[e.Box] = spec // also for a deleted box
	}
	return remedy.NearMiss(spec, e)
}

// maxSummarized bounds the destinations that a summary distinguishes, since boxes choose the names. Denials of further
// ones are counted as others.
const maxSummarized = 10000

// maxSummaryShown is the number of rows printed for people; JSON contains all.
const maxSummaryShown = 20

// denialGroup identifies denials that a summary counts together.
type denialGroup struct {
	Box      policy.BoxID    `json:"box,omitempty"`
	Host     string          `json:"host,omitempty"` // name, or address if no name is known
	Port     uint16          `json:"port,omitempty"` // 0: a DNS look-up, or a protocol without ports
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Reason   name.Reason     `json:"reason"`
}

// denialCount counts the denials of one group.
type denialCount struct {
	denialGroup
	BoxName string    `json:"box_name,omitempty"`
	Count   uint64    `json:"count"`
	Last    time.Time `json:"last"`

	event audit.Event // the last one
}

// logSummary counts denials by box, destination and reason. The zero value is empty.
type logSummary struct {
	groups       map[denialGroup]*denialCount
	total, other uint64 // other: beyond maxSummarized
}

// add counts a line of the log; decision is false for lines that are none.
func (s *logSummary) add(e audit.Event, decision bool) {
	if !decision || e.Verdict != policy.Deny {
		return
	}
	n := max(e.Count, 1)
	s.total += n
	g := denialGroup{Box: e.Box, Host: e.Name, Port: e.Port, Protocol: e.Protocol, Reason: e.Reason}
	if g.Host == "" && e.Addr.IsValid() {
		g.Host = e.Addr.String()
	}
	if e.Stage == policy.StageDNS {
		g.Port, g.Protocol = 0, "" // they are the DNS server's
	}
	if s.groups == nil {
		s.groups = map[denialGroup]*denialCount{}
	}
	c := s.groups[g]
	if c == nil {
		if len(s.groups) >= maxSummarized {
			s.other += n
			return
		}
		c = &denialCount{denialGroup: g}
		s.groups[g] = c
	}
	c.Count += n
	if !e.Time.Before(c.Last) {
		c.Last, c.BoxName, c.event = e.Time, e.BoxName, e
	}
}

// rows returns the counts, the highest first.
func (s *logSummary) rows() []*denialCount {
	rows := make([]*denialCount, 0, len(s.groups))
	for _, c := range s.groups {
		rows = append(rows, c)
	}
	slices.SortFunc(rows, func(a, b *denialCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.box(), b.box()), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Reason, b.Reason))
	})
	return rows
}

func (c *denialCount) box() string { return cmp.Or(c.BoxName, string(c.Box), "-") }

// destination returns host and port for people.
func (c *denialCount) destination() string {
	text := audit.Escape(cmp.Or(c.Host, "-"), 100)
	if c.Port != 0 {
		text = net.JoinHostPort(text, strconv.Itoa(int(c.Port)))
	}
	if c.Protocol != "" && c.Protocol != policy.TCP {
		text += "/" + string(c.Protocol)
	}
	if c.event.Stage == policy.StageDNS {
		text += " (look-up)"
	}
	return text
}

// printSummary prints the summary, and a remedy for the most frequent denial of each reason.
func (r *logReader) printSummary() error {
	s, rows := r.summary, r.summary.rows()
	out := r.cmd.OutOrStdout()
	if r.o.JSON {
		return cli.WriteJSON(out, map[string]any{"denials": rows, "total": s.total, "other": s.other})
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "There are no denials.")
		return err
	}
	table := [][]string{{"COUNT", "BOX", "DESTINATION", "REASON", "LAST"}}
	shown := rows[:min(len(rows), maxSummaryShown)]
	rest := s.total
	for _, c := range shown {
		rest -= c.Count
		table = append(table, []string{strconv.FormatUint(c.Count, 10), audit.Escape(c.box(), 64), c.destination(), string(c.Reason), c.Last.Local().Format("2006-01-02 15:04:05")})
	}
	if err := cli.Table(out, table...); err != nil {
		return err
	}
	if rest > 0 {
		fmt.Fprintf(out, "and %s of other destinations; --json lists them\n", cli.Count(rest, "denial", "denials"))
	}
	for _, c := range shown {
		r.advise(c.event)
	}
	return r.failed()
}
