package observe

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// maxExamples bounds the paths, the queries and the addresses of one observation, and maxPaths the bytes of its paths and of its queries. Each observation is
// read and written again when it has new decisions.
const (
	maxExamples = 16
	maxPaths    = 2048
)

// Key identifies an observation of one box. Decisions with the same key are summed up in one observation.
type Key struct {
	Stage    policy.Stage    `json:"stage"`
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Name     string          `json:"name,omitempty"` // as in the event
	Addr     netip.Addr      `json:"addr,omitzero"`  // of the destination, only without a name
	Port     uint16          `json:"port,omitempty"` // 0: DNS, ICMP
	Method   string          `json:"method,omitempty"`
	Shape    string          `json:"shape,omitempty"` // of the path, see [Shape]
	Verdict  policy.Verdict  `json:"verdict"`
	Action   audit.Action    `json:"action,omitempty"`
	Reason   name.Reason     `json:"reason"`
	Rule     string          `json:"rule,omitempty"`
	// Opening is the kind of connection or request, Source the origin of Name, and Proxied a client of the explicit proxy: see
	// [audit.Seen]. They are empty if another policy cannot decide about the same.
	Opening string `json:"opening,omitempty"`
	Source  string `json:"name_source,omitempty"`
	Proxied bool   `json:"proxied,omitempty"`
}

// The values of Opening and Source.
var (
	openings = map[policy.Opening]string{
		policy.OpeningUnreadable: "unreadable", policy.OpeningTLS: "tls", policy.OpeningLenient: "lenient", policy.OpeningPartial: "partial",
		policy.OpeningOther: "other", policy.OpeningSilent: "silent", policy.OpeningEnded: "ended", policy.OpeningConnect: "connect",
		policy.OpeningRequest: "request", policy.OpeningSecure: "secure",
	}
	sources = map[audit.NameSource]string{
		audit.NameNone: "none", audit.NameSent: "sent", audit.NameBound: "bound", audit.NameLooked: "looked_up", audit.NameGuess: "guessed",
	}
)

// Seen returns what the proxy knew about the connections or requests, without their queries.
func (k *Key) Seen() audit.Seen {
	s := audit.Seen{Proxied: k.Proxied}
	for opening, text := range openings {
		if text == k.Opening {
			s.Opening, s.Known = opening, true
		}
	}
	for source, text := range sources {
		if text == k.Source {
			s.Source = source
		}
	}
	return s
}

// keyOf returns the key of an event.
func keyOf(e *audit.Event) Key {
	k := Key{
		Stage: e.Stage, Protocol: e.Protocol, Name: e.Name, Port: e.Port, Method: e.Method, Verdict: e.Verdict, Action: e.Action,
		Reason: e.Reason, Rule: e.Rule,
	}
	if k.Name == "" {
		k.Addr = claimed(e)
	}
	if e.Path != "" {
		k.Shape = Shape(e.Path)
	}
	if e.Seen.Known {
		k.Opening, k.Source, k.Proxied = openings[e.Seen.Opening], sources[e.Seen.Source], e.Seen.Proxied
	}
	return k
}

// claimed returns the destination that the box chose.
func claimed(e *audit.Event) netip.Addr {
	if e.Claimed.IsValid() {
		return e.Claimed
	}
	return e.Addr
}

// Observation sums up the decisions with one key.
type Observation struct {
	Key
	Version  uint64    `json:"policy_version,omitempty"` // of the latest decision
	Count    uint64    `json:"count"`                    // of decisions
	BytesIn  int64     `json:"bytes_in,omitempty"`       // towards the box
	BytesOut int64     `json:"bytes_out,omitempty"`      // from the box
	First    time.Time `json:"first_seen"`
	Last     time.Time `json:"last_seen"`
	Paths    []string  `json:"paths,omitempty"`      // up to 16 different paths, without queries
	More     bool      `json:"more_paths,omitempty"` // Paths is incomplete
	// Queries are up to 16 different sets of parameters, as the names of one query joined by "&"; "" is a request without a query.
	// The values of parameters are never kept.
	Queries   []string     `json:"queries,omitempty"`
	MoreQuery bool         `json:"more_queries,omitempty"` // Queries is incomplete
	Addrs     []netip.Addr `json:"addrs,omitempty"`        // up to 16 different addresses of Name that the box chose
	MoreAddr  bool         `json:"more_addrs,omitempty"`   // Addrs is incomplete
}

// Of returns an event as an observation. An event that only ends traffic counts as no decision: its beginning
// was counted, unless the policy cut the traffic.
func Of(e *audit.Event) Observation {
	return observationOf(e, keyOf(e))
}

// observationOf is Of for an event whose key is known.
func observationOf(e *audit.Event, k Key) Observation {
	o := Observation{
		Key: k, Version: e.Version, Count: countOf(e), BytesIn: e.BytesIn, BytesOut: e.BytesOut, First: e.Time, Last: e.Time,
	}
	if e.Path != "" {
		o.Paths = []string{e.Path}
	}
	if e.Seen.Known && e.Stage == policy.StageHTTP {
		if names, whole := parameterNames(e.Seen.Query); whole {
			o.Queries = []string{names}
		} else {
			o.MoreQuery = true
		}
	}
	if at := claimed(e); o.Name != "" && at.IsValid() {
		o.Addrs = []netip.Addr{at}
	}
	return o
}

// countOf returns the number of decisions that an event stands for.
func countOf(e *audit.Event) uint64 {
	if e.Phase == audit.PhaseOngoing || e.Phase == audit.PhaseEnd && e.Verdict == policy.Allow {
		return 0
	}
	return max(e.Count, 1)
}

// addEvent adds an event with the same key, the first of whose decisions was made at first. It has the result of add with the
// observation of the event, and does not allocate if the event has no new example.
func (o *Observation) addEvent(e *audit.Event, first time.Time) {
	if !e.Time.Before(o.Last) {
		o.Last, o.Version = e.Time, e.Version
	}
	if first.Before(o.First) {
		o.First = first
	}
	o.Count += countOf(e)
	o.BytesIn += e.BytesIn
	o.BytesOut += e.BytesOut
	if e.Path != "" && !slices.Contains(o.Paths, e.Path) {
		o.More = union(&o.Paths, []string{e.Path}, within(o.Paths)) || o.More
	}
	if e.Seen.Known && e.Stage == policy.StageHTTP {
		var p parameters
		switch {
		case !p.read(e.Seen.Query):
			o.MoreQuery = true
		case !slices.ContainsFunc(o.Queries, p.are):
			names, _ := parameterNames(e.Seen.Query)
			o.MoreQuery = union(&o.Queries, []string{names}, within(o.Queries)) || o.MoreQuery
		}
	}
	if at := claimed(e); o.Name != "" && at.IsValid() && !slices.Contains(o.Addrs, at) {
		o.MoreAddr = union(&o.Addrs, []netip.Addr{at}, func(netip.Addr) bool { return true }) || o.MoreAddr
	}
}

// add adds an observation with the same key.
func (o *Observation) add(p *Observation) {
	if !p.Last.Before(o.Last) {
		o.Last, o.Version = p.Last, p.Version
	}
	if p.First.Before(o.First) {
		o.First = p.First
	}
	o.Count += p.Count
	o.BytesIn += p.BytesIn
	o.BytesOut += p.BytesOut
	o.More = union(&o.Paths, p.Paths, within(o.Paths)) || o.More || p.More
	o.MoreQuery = union(&o.Queries, p.Queries, within(o.Queries)) || o.MoreQuery || p.MoreQuery
	o.MoreAddr = union(&o.Addrs, p.Addrs, func(netip.Addr) bool { return true }) || o.MoreAddr || p.MoreAddr
}

// within returns a function that reports whether a text may still be added to a list, which then has at most maxPaths bytes.
func within(list []string) (fits func(string) bool) {
	size := 0
	for _, text := range list {
		size += len(text)
	}
	return func(text string) bool {
		size += len(text)
		return size <= maxPaths
	}
}

// union adds the elements of from to an example list while there is room, also according to fits, and reports whether one was
// left out.
func union[T comparable](to *[]T, from []T, fits func(T) bool) (left bool) {
	for _, x := range from {
		switch {
		case slices.Contains(*to, x):
		case len(*to) < maxExamples && fits(x):
			*to = append(*to, x)
		default:
			left = true
		}
	}
	return left
}

// Summary is the observations of one box.
type Summary struct {
	Observations []Observation // the latest first
	// Overflow counts decisions that have no observation: the box had as many as it may have.
	Overflow uint64
	// Lost counts decisions that arrived faster than they could be summed up.
	Lost uint64
	// Since is the time of the latest observation that was removed for its age or for space; zero: none was.
	Since time.Time
}

// byLast sorts observations, the latest first.
func byLast(a, b Observation) int {
	return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Shape, b.Shape))
}
