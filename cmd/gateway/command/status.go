package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/cmd/gateway/command/top"
	"boxgate/config"
	"boxgate/preflight"
)

// gatewayAnswer is the state of the gateway as the API returns it.
type gatewayAnswer struct {
	Version, Revision string
	UptimeSeconds     int64 `json:"uptime_seconds"`
	Boxes             map[string]int
	Denials           struct {
		Seconds int
		Total   uint64
		Reasons map[string]uint64
		Boxes   []deniedBox
		AtLeast bool `json:"at_least"`
	}
	Audited struct {
		Total int
		Boxes []auditedBox
	}
	Listeners   []listenerAnswer
	Places      []placeAnswer
	Descriptors placeAnswer
	Unremoved   []string // interfaces

	MetricsExport *struct {
		LastSuccess time.Time `json:"last_success"`
		Error       string
	} `json:"metrics_export"`

	SSHHostKey string `json:"ssh_host_key"`
}

// deniedBox is the number of denials of one box.
type deniedBox struct {
	ID, Name string
	Total    uint64
}

// auditedBox is a box whose policy is audited instead of enforced.
type auditedBox struct {
	ID, Name  string
	ExpiresAt int64 `json:"expires_at"`
}

// listenerAnswer is the state of one listener.
type listenerAnswer struct {
	Name, Address      string
	Accepts            bool
	Connections, Limit int
}

// placeAnswer is the usage of a bounded resource.
type placeAnswer struct {
	Name        string
	Used, Limit int
}

// certificateState is the remaining validity of a certificate of the public URLs.
type certificateState struct {
	Subject   string    `json:"subject"`
	ExpiresAt time.Time `json:"expires_at"`
	DaysLeft  int       `json:"days_left"`
}

// hostFinding is a problem of the host, or a warning about it.
type hostFinding struct {
	What    string `json:"what"`
	Error   string `json:"error,omitempty"`
	Warning string `json:"warning,omitempty"`
}

// statusReport is the output of `gateway status`.
type statusReport struct {
	Gateway json.RawMessage `json:"gateway"`
	// Configuration is the file that this command reads. Empty if the gateway may be on another host.
	Configuration string             `json:"configuration,omitempty"`
	Secrets       json.RawMessage    `json:"secrets"`
	Certificates  []certificateState `json:"certificates,omitempty"`
	Host          []hostFinding      `json:"host"`
	HostChecks    int                `json:"host_checks"` // number of checks; 0 if the gateway may be on another host

	gateway gatewayAnswer
	secrets []secretAnswer
}

// newStatusCommand is `gateway status`.
func newStatusCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the state of the gateway at a glance: boxes, denials, listeners, certificates, secrets and the host",
		Long: `Shows version and uptime, the boxes by state, the denials of the last ten minutes, the listeners (whether they accept
connections, and how many are open), the validity of certificates, the age of secrets, and the findings of
` + "`gateway check`" + ` about the host. With --admin, certificates and host are left out, because they belong to the
gateway's host.`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := newStatus(cmd.Context(), o)
			if err != nil {
				return err
			}
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), report)
			}
			return cli.PaintedTable(cmd.OutOrStdout(), []string{"warning:", "FAILED:", "NOT AVAILABLE,", "DOES NOT ACCEPT"}, report.rows(time.Now())...)
		},
	}
}

// newStatus collects the state from the gateway and, without --admin, from this host.
func newStatus(ctx context.Context, o *cli.Options) (*statusReport, error) {
	client, err := o.Client()
	if err != nil {
		return nil, err
	}
	r := &statusReport{Host: []hostFinding{}}
	if err := client.Get(ctx, "/v2/gateway", &r.Gateway); err != nil {
		return nil, err
	}
	var list struct{ Secrets json.RawMessage }
	if err := client.Get(ctx, "/v2/secrets", &list); err != nil {
		return nil, err
	}
	r.Secrets = list.Secrets
	if err := errors.Join(json.Unmarshal(r.Gateway, &r.gateway), json.Unmarshal(r.Secrets, &r.secrets)); err != nil {
		return nil, errors.New("the response does not come from a gateway of this version")
	}
	if o.Admin == "" {
		r.checkHost(ctx, o)
	}
	return r, nil
}

func (r *statusReport) checkHost(ctx context.Context, o *cli.Options) {
	r.Configuration = configurationOf(o)
	for _, f := range allFindings(ctx, o) {
		if f.What == runningFinding || strings.HasPrefix(f.What, "certificate ") {
			continue // shown separately
		}
		r.HostChecks++
		if f.Err == nil {
			continue
		}
		for _, err := range preflight.Errors(f.Err) {
			text := strings.ReplaceAll(err.Error(), "\n", "; ")
			if errors.As(err, new(preflight.Warning)) {
				r.Host = append(r.Host, hostFinding{What: f.What, Warning: text})
			} else {
				r.Host = append(r.Host, hostFinding{What: f.What, Error: text})
			}
		}
	}
	if cfg, err := o.Load(); err == nil {
		r.Certificates = certificateStates(ctx, cfg, time.Now())
	}
}

// certificateStates returns the certificates on disk, the earliest expiry first.
func certificateStates(ctx context.Context, cfg config.Config, now time.Time) []certificateState {
	expiries, err := storedCertificates(ctx, cfg)
	if err != nil {
		return nil // reported by the host checks
	}
	var all []certificateState
	for subject, at := range expiries {
		all = append(all, certificateState{subject, at, max(int(at.Sub(now).Hours()/24), 0)})
	}
	slices.SortFunc(all, func(a, b certificateState) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
	return all
}

// rows returns the report as lines for people.
func (r *statusReport) rows(now time.Time) [][]string {
	g := r.gateway
	uptime := time.Duration(g.UptimeSeconds) * time.Second
	rows := [][]string{
		{"gateway", fmt.Sprintf("%s, revision %s, up for %v", g.Version, g.Revision, uptime)},
		{"boxes", formatCounts(g.Boxes, "none")},
		{"denials", r.denials()},
	}
	if by := r.gateway.deniedBoxes(); by != "" {
		rows = append(rows, []string{"refused most", by})
	}
	if text := g.audited(now); text != "" {
		rows = append(rows, []string{"audited", text})
	}
	for _, link := range g.Unremoved {
		rows = append(rows, []string{"kernel", fmt.Sprintf("FAILED: the interface %s of a closed box could not be removed, so its traffic may still be forwarded; this is retried, see the log", audit.Escape(link, 64))})
	}
	if r.Configuration != "" {
		rows = append(rows, []string{"configuration", r.Configuration})
	}
	rows = append(rows, g.resourceRows()...)
	if g.SSHHostKey != "" {
		rows = append(rows, []string{"SSH host key", audit.Escape(g.SSHHostKey, 80)})
	}
	if g.MetricsExport != nil {
		rows = append(rows, []string{"metrics export", g.metricsExport(now)})
	}
	for _, c := range r.Certificates[:min(len(r.Certificates), maxShown)] {
		rows = append(rows, []string{"certificate", fmt.Sprintf("%s, %s left", c.Subject, cli.Count(c.DaysLeft, "day", "days"))})
	}
	for _, s := range r.secrets {
		rows = append(rows, []string{"secret", s.state(now)})
	}
	for _, f := range r.Host {
		text := "warning: " + f.Warning
		if f.Error != "" {
			text = "FAILED: " + f.Error
		}
		rows = append(rows, []string{"host", f.What + ": " + text})
	}
	if r.HostChecks > 0 && len(r.Host) == 0 {
		rows = append(rows, []string{"host", cli.Count(r.HostChecks, "check", "checks") + ", all ok"})
	}
	return rows
}

// resourceRows returns a line for every listener and for every bounded resource in use.
func (g gatewayAnswer) resourceRows() (rows [][]string) {
	for _, l := range g.Listeners {
		text := fmt.Sprintf("%s at %s, %s open connections", l.Name, l.Address, formatUsage(l.Connections, l.Limit))
		if !l.Accepts {
			text += ": DOES NOT ACCEPT new ones"
		}
		rows = append(rows, []string{"listener", text})
	}
	for _, p := range append(g.Places, g.Descriptors) {
		if p.Used > 0 {
			rows = append(rows, []string{"in use", formatUsage(p.Used, p.Limit) + " " + strings.ReplaceAll(p.Name, "_", " ")})
		}
	}
	return rows
}

// metricsExport describes the export of metrics.
func (g gatewayAnswer) metricsExport(now time.Time) string {
	x, last := g.MetricsExport, "nothing accepted yet"
	if !x.LastSuccess.IsZero() {
		last = fmt.Sprintf("last accepted %v ago", max(now.Sub(x.LastSuccess), 0).Round(time.Second))
	}
	if x.Error != "" {
		return fmt.Sprintf("FAILED: %s; %s", audit.Escape(x.Error, 200), last)
	}
	return last
}

// formatUsage formats a usage with its limit, if there is one.
func formatUsage(n, limit int) string {
	if limit <= 0 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d of %d", n, limit)
}

func (r *statusReport) denials() string {
	d := r.gateway.Denials
	if d.Total == 0 {
		return fmt.Sprintf("none in the last %v", minutes(d.Seconds))
	}
	atLeast := ""
	if d.AtLeast {
		atLeast = "at least "
	}
	return fmt.Sprintf("%s%d in the last %v: %s; see `gateway log --denied`", atLeast, d.Total, minutes(d.Seconds), formatCounts(d.Reasons, ""))
}

// maxDeniedShown bounds the boxes in the line about denials.
const maxDeniedShown = 5

// deniedBoxes lists the boxes with the most denials, and their number, or returns "".
func (g gatewayAnswer) deniedBoxes() string {
	var parts []string
	for _, b := range g.Denials.Boxes[:min(len(g.Denials.Boxes), maxDeniedShown)] {
		parts = append(parts, fmt.Sprintf("%s %d", audit.Escape(cmp.Or(b.Name, b.ID), 64), b.Total))
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ", ") + "; see `gateway log --summary`"
}

// audited lists the boxes whose policy is audited, as a warning, or returns "".
func (g gatewayAnswer) audited(now time.Time) string {
	if g.Audited.Total == 0 {
		return ""
	}
	var parts []string
	for _, b := range g.Audited.Boxes[:min(len(g.Audited.Boxes), maxDeniedShown)] {
		left := max(time.Unix(b.ExpiresAt, 0).Sub(now), 0).Round(time.Second)
		parts = append(parts, fmt.Sprintf("%s for %v", audit.Escape(cmp.Or(b.Name, b.ID), 64), left))
	}
	if more := g.Audited.Total - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("warning: %s not enforced: %s; to enforce: gateway policy audit BOX --end",
		cli.Count(g.Audited.Total, "policy is", "policies are"), strings.Join(parts, ", "))
}

func minutes(seconds int) string { return cli.Count(seconds/60, "minute", "minutes") }

// formatCounts lists the count of each kind. If of is empty, it returns the text none.
func formatCounts[N int | uint64](of map[string]N, none string) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%d %s", of[what], what))
	}
	if len(parts) == 0 {
		return none
	}
	return strings.Join(parts, ", ")
}

// state describes a secret and its age in one line.
func (s secretAnswer) state(now time.Time) string {
	switch {
	case s.firstReadPending():
		return s.Name + " is being read for the first time, and requests that need it wait"
	case !s.Valid:
		return s.Name + " is NOT AVAILABLE, and requests that need it are refused: " + textOrDash(s.Error) + "; once that is fixed: gateway secret refresh " + s.Name
	case s.ReadAt.IsZero():
		return s.Name
	}
	text := fmt.Sprintf("%s, read %v ago", s.Name, now.Sub(s.ReadAt).Round(time.Second))
	if s.Stale {
		text += ", stale: read again at the next use"
	}
	if !s.ExpiresAt.IsZero() {
		text += fmt.Sprintf(", expires in %v", s.ExpiresAt.Sub(now).Round(time.Second))
	}
	return text
}

// newTopCommand is `gateway top`.
func newTopCommand(o *cli.Options) *cobra.Command {
	var once bool
	var label string
	cmd := &cobra.Command{
		Use: "top", Short: "Show the activity of the boxes live, with keys to allow, deny and explain denials",
		Long: `Shows the connections, requests, denials and bytes per second of each box, and the latest denials. Arrow keys select a denial;
a and d allow or deny its destination for a time, e explains it, / filters boxes, s sorts, p pauses, q quits.
For scripts, --once observes two seconds and prints one table, or one JSON document with --json.`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !once && o.JSON {
				return cli.Usagef("--json needs --once: `gateway top --once --json`")
			}
			if !once && (!terminal.IsOne(os.Stdin) || !terminal.IsOne(os.Stdout)) {
				return cli.Usagef("gateway top needs a terminal; elsewhere use `gateway top --once`, with --json for scripts")
			}
			client, err := o.QuietClient()
			if err != nil {
				return err
			}
			if once {
				return topOnce(cmd, o, client, label)
			}
			if _, err := top.Boxes(cmd.Context(), client, label); err != nil { // reported before the terminal is drawn on
				return err
			}
			return top.Run(cmd.Context(), client, label)
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "only boxes with this label")
	cmd.Flags().BoolVar(&once, "once", false, "observe once, print and exit; needs no terminal")
	return cmd
}

// topOnce observes one interval and prints it.
func topOnce(cmd *cobra.Command, o *cli.Options, client *api.Client, label string) error {
	m, err := observeOnce(cmd.Context(), client, label)
	if err != nil {
		return err
	}
	rows, denials := m.Rows(top.ByDenials, ""), m.Denials("")
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"boxes": append([]top.Row{}, rows...), "denials": append([]audit.Event{}, denials...)})
	}
	return printTop(cmd.OutOrStdout(), rows, denials)
}

func observeOnce(ctx context.Context, client *api.Client, label string) (*top.Model, error) {
	list, err := top.Boxes(ctx, client, label)
	if err != nil {
		return nil, err
	}
	m := &top.Model{Listed: label != ""}
	m.Boxes(time.Now(), list)
	looking, cancel := context.WithTimeout(ctx, top.Interval)
	defer cancel()
	if err := top.Follow(looking, client, m.Event, func(string) {}); err != nil && looking.Err() == nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if list, err = top.Boxes(ctx, client, label); err != nil {
		return nil, err
	}
	m.Boxes(time.Now(), list)
	return m, nil
}

func printTop(w io.Writer, rows []top.Row, denials []audit.Event) error {
	table := [][]string{{"BOX", "STATUS", "CONN/S", "REQ/S", "DENY/S", "IN/S", "OUT/S", "TOK/S", "COST"}}
	for _, r := range rows {
		line := []string{audit.Escape(r.Label(), 64), r.Status + auditedMark(r.AuditedUntil)}
		for _, f := range []float64{r.Connections, r.Requests, r.Denials, r.BytesIn, r.BytesOut, r.Tokens} {
			line = append(line, fmt.Sprintf("%.1f", f))
		}
		table = append(table, append(line, fmt.Sprintf("$%.2f", r.Cost)))
	}
	if err := cli.Table(w, table...); err != nil {
		return err
	}
	for _, e := range denials[:min(len(denials), 10)] {
		if _, err := fmt.Fprintln(w, audit.Line(e)); err != nil {
			return err
		}
	}
	return nil
}
