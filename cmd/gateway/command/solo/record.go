package solo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/story"
	"boxgate/enclosure/inside"
	"boxgate/policy"
	"boxgate/policy/learn"
	"boxgate/policy/name"
)

// Record collects the destinations that a command reached or was refused.
type Record struct {
	out   io.Writer
	quiet bool
	spec  policy.Spec // the policy of the command
	sinks []netip.Addr

	mu        sync.Mutex
	reached   map[destination]*outcome
	refused   map[destination]*outcome
	failed    map[destination]*outcome // allowed, but the server did not answer, or not properly
	printed   map[string]bool          // denials already printed
	sockets   []string                 // host sockets that the command was refused
	truncated bool                     // further destinations were dropped
	lost      uint64
}

// maxDestinations bounds the memory that a command can make this process use.
const maxDestinations = 4096

// destination is a name with a port, or an address if no name was known. Port 0 means a name that was only resolved.
type destination struct {
	name     string
	addr     netip.Addr
	port     uint16
	protocol policy.Protocol
}

// outcome counts the decisions about a destination.
type outcome struct {
	count  uint64
	reason name.Reason
	opens  bool // a policy can allow it
}

func newRecord(o Options, sinks ...netip.Addr) *Record {
	return &Record{spec: o.Policy, sinks: sinks, failed: map[destination]*outcome{}, out: o.Errout, quiet: o.Quiet, reached: map[destination]*outcome{}, refused: map[destination]*outcome{}, printed: map[string]bool{}}
}

func (d destination) host() string {
	if d.name != "" {
		return d.name
	}
	if d.addr.IsValid() {
		return d.addr.String()
	}
	return "an unknown destination"
}

// String returns the host and the port.
func (d destination) String() string {
	host := d.host()
	if d.port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(d.port)))
	}
	if d.protocol != "" && d.protocol != policy.TCP {
		host += "/" + string(d.protocol)
	}
	return host
}

// destinationOf returns the destination of a decision. Names are parsed, so they contain no terminal escape sequences.
func destinationOf(e audit.Event) destination {
	if e.Stage == policy.StageDNS {
		e.Addr, e.Port, e.Protocol = netip.Addr{}, 0, ""
	}
	if host, err := name.Parse(e.Name); err == nil {
		return destination{name: host.String(), port: e.Port, protocol: e.Protocol}
	}
	return destination{addr: e.Addr, port: e.Port, protocol: e.Protocol}
}

// follow records decisions until there are no more.
func (r *Record) follow(events api.EventStream) {
	requests := story.New(true, r.record)
	for e := range events.Events() {
		requests.Add(e)
	}
	requests.Flush()
	r.lost = events.Lost()
}

// record records a decision and prints the first denial of each destination.
func (r *Record) record(e audit.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := destinationOf(e)
	if d.name == "" && slices.Contains(r.sinks, d.addr) {
		return // the sink address of a name that was already refused
	}
	// Under allow-all, resolvers also try names of their search list.
	missing := e.Verdict == policy.Allow && e.RCode == audit.NXDomain && e.Reason == name.ReasonAllowedDomain
	if missing {
		e.Reason = name.ReasonUnresolved
	}
	if missing || e.Verdict != policy.Allow && e.Reason.IsFailure() {
		r.countLocked(r.failed, d, e)
		r.printLocked("could not reach", d, e)
		return
	}
	if e.Verdict != policy.Allow {
		r.countLocked(r.refused, d, e)
		r.printLocked("refused", d, e)
		return
	}
	if e.Stage == policy.StageDNS || e.Phase == audit.PhaseEnd || d.port == 0 {
		return // a look-up alone does not reach the host
	}
	r.countLocked(r.reached, d, e)
}

// refusedSocket records and prints that the command was refused a Unix socket of the host.
func (r *Record) refusedSocket(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sockets = append(r.sockets, strconv.Quote(path))
	if !r.quiet {
		r.printf("gateway: refused the socket %q: no process of the command has bound it; --socket PATH lets the command reach one of the host\n", path)
	}
}

func (r *Record) countLocked(in map[destination]*outcome, d destination, e audit.Event) {
	o := in[d]
	if o == nil {
		if len(in) >= maxDestinations {
			r.truncated = true
			return
		}
		_, opens := remedy.OpeningOf(e)
		o = &outcome{reason: e.Reason, opens: opens}
		in[d] = o
	}
	o.count += max(e.Count, 1)
}

func (r *Record) printLocked(outcome string, d destination, e audit.Event) {
	key := d.withPort().String() + " " + string(e.Reason)
	if r.quiet || r.printed[key] || len(r.printed) >= maxDestinations {
		return
	}
	r.printed[key] = true
	next := advice(d, e)
	if near := remedy.NearMiss(r.spec, e); near != "" {
		next = near + "; " + next
	}
	r.printf("gateway: %s %s (%s): %s\n", outcome, d, e.Reason, next)
}

// printf prints to standard error, even while the command owns the terminal.
func (r *Record) printf(format string, args ...any) {
	_ = inside.BlockTTOU(func() error {
		_, err := fmt.Fprintf(r.out, format, args...)
		return err
	})
}

// advice returns the remedy for a denial.
func advice(d destination, e audit.Event) string {
	if e.RCode == audit.NXDomain {
		return "the policy allows the name, but it does not exist: check its spelling"
	}
	switch e.Reason {
	case name.ReasonNotAllowed, name.ReasonDenyAll, name.ReasonNoName:
		o, ok := remedy.OpeningOf(e)
		switch {
		case !ok && e.Reason == name.ReasonNoName:
			return "use a client that sends the name of the host (SNI, or a Host header)"
		case d.protocol != "" && d.protocol != policy.TCP:
			return "gateway run supports only TCP and DNS"
		case policy.IsOfCeiling(e.Rule):
			return "policy.ceiling of the configuration does not allow it, whatever the policy"
		case !ok:
			return fmt.Sprintf("no name is known for it; to allow it, add its name with the port: --allow HOST:%d", d.withPort().port)
		}
		return o.Caveat("to allow it: --allow " + o.Entry)
	case name.ReasonProtocol:
		return "gateway run supports only TCP and DNS; QUIC clients fall back to TCP"
	case name.ReasonDeniedDomain, name.ReasonDeniedCIDR:
		return "the policy denies it, and denied entries win"
	case name.ReasonProtectedRange, name.ReasonHostPort:
		return "private networks, cloud metadata and the host itself are closed whatever the policy; network.protected_exempt of the configuration lists exceptions"
	case name.ReasonHeaderRule, name.ReasonRequestRule:
		return "a rule refuses such requests"
	}
	return remedy.Plain(e)
}

// withPort returns d with port 443 if the name was only resolved, assuming a connection with HTTPS.
func (d destination) withPort() destination {
	if d.name != "" && d.port == 0 {
		d.port = remedy.HTTPSPort
	}
	return d
}

// Summarize prints the destinations reached and refused, and a policy for them.
func (r *Record) Summarize() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.printf("gateway: reached %s\n", list(r.reached, false))
	if len(r.failed) > 0 {
		r.printf("gateway: could not reach %s\n", list(r.failed, true))
	}
	switch {
	case len(r.refused)+len(r.sockets) == 0:
		r.printf("gateway: refused nothing\n")
	case len(r.refused) > 0:
		r.printf("gateway: refused %s\n", list(r.refused, true))
		if spec, ok := r.wider(); ok {
			r.printf("gateway: this policy allows what was reached and what was refused%s:\n%s\n", beyond(spec), text(spec))
		}
	}
	if len(r.sockets) > 0 {
		r.printf("gateway: refused sockets that no process of the command has bound: %s (--socket PATH lets the command reach one of the host)\n", strings.Join(r.sockets, ", "))
	}
	if r.truncated || r.lost > 0 {
		r.printf("gateway: there was more than is listed here\n")
	}
}

func list(of map[destination]*outcome, why bool) string {
	if len(of) == 0 {
		return "nothing"
	}
	var out string
	for i, d := range sorted(of) {
		if i > 0 {
			out += ", "
		}
		out += d.String()
		if o := of[d]; why {
			out += fmt.Sprintf(" (%s, %s)", o.reason, cli.Count(o.count, "time", "times"))
		}
	}
	return out
}

func sorted(of map[destination]*outcome) []destination {
	return slices.SortedFunc(maps.Keys(of), func(a, b destination) int { return cmp.Compare(a.String(), b.String()) })
}

func text(spec policy.Spec) string {
	data, err := json.Marshal(spec)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// Learned returns the policy that allows exactly the destinations reached.
func (r *Record) Learned() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return []byte(text(specOf(slices.Collect(maps.Keys(r.reached)))) + "\n")
}

// wider returns a policy that also allows the refused destinations, as far as a policy can. It reports whether that
// adds any.
func (r *Record) wider() (policy.Spec, bool) {
	all := slices.AppendSeq(slices.Collect(maps.Keys(r.reached)), maps.Keys(r.failed))
	helps := false
	for d, o := range r.refused {
		if o.opens && o.reason != name.ReasonDeniedDomain && (d.protocol == "" || d.protocol == policy.TCP) {
			all, helps = append(all, d), true
		}
	}
	return specOf(all), helps
}

// beyond warns if the policy allows more than was refused, because entries for addresses have no port.
func beyond(spec policy.Spec) string {
	if len(spec.AllowedCIDRs) == 0 {
		return ""
	}
	return ", and every port of the addresses, under any name"
}

// specOf returns the policy that allows the destinations.
func specOf(all []destination) policy.Spec {
	list := make([]learn.Destination, 0, len(all))
	for _, d := range all {
		list = append(list, learn.Destination{Name: d.name, Addr: d.addr, Port: d.port, Protocol: d.protocol})
	}
	return learn.Exact(list)
}

// report is the summary of a command as JSON.
type report struct {
	ExitStatus     int               `json:"exit_status"`
	Reached        []destinationView `json:"reached"`
	Refused        []destinationView `json:"refused"`
	Failed         []destinationView `json:"failed"`                    // allowed, but the server did not answer, or not properly
	RefusedSockets []string          `json:"refused_sockets,omitempty"` // quoted paths
	Policy         *policy.Spec      `json:"policy,omitempty"`          // allows all of Reached, and as much of Refused as a policy can
	Learned        json.RawMessage   `json:"learned,omitempty"`
	Incomplete     bool              `json:"incomplete"` // there was more than is listed
}

// destinationView is a destination that a command reached or was refused.
type destinationView struct {
	Host     string          `json:"host,omitempty"` // a name, or an address; empty: unknown
	Port     uint16          `json:"port,omitempty"` // 0: only resolved
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Count    uint64          `json:"count"`
	Reason   name.Reason     `json:"reason,omitempty"`
	Allow    string          `json:"allow,omitempty"` // the policy entry that allows it
}

// WriteJSON prints the summary as one line of JSON.
func (r *Record) WriteJSON(status int, learned bool) {
	var spec json.RawMessage
	if learned {
		spec = r.Learned()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := report{
		ExitStatus: status, Reached: views(r.reached, false), Refused: views(r.refused, true), Failed: views(r.failed, true), RefusedSockets: r.sockets, Learned: spec,
		Incomplete: r.truncated || r.lost > 0,
	}
	if spec, ok := r.wider(); ok {
		out.Policy = &spec
	}
	line, err := json.Marshal(out)
	if err != nil {
		r.printf("gateway: %v\n", err)
		return
	}
	r.printf("%s\n", line)
}

func views(of map[destination]*outcome, refused bool) []destinationView {
	out := []destinationView{}
	for _, d := range sorted(of) {
		o := of[d]
		v := destinationView{Host: d.name, Port: d.port, Protocol: d.protocol, Count: o.count}
		if d.name == "" && d.addr.IsValid() {
			v.Host = d.addr.String()
		}
		if refused {
			v.Reason = o.reason
			if o.opens && (d.protocol == "" || d.protocol == policy.TCP) {
				spec := specOf([]destination{d})
				v.Allow = slices.Concat(spec.AllowedDomains, spec.AllowedCIDRs, []string{""})[0]
			}
		}
		out = append(out, v)
	}
	return out
}
