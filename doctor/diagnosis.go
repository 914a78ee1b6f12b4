package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"boxgate/doctor/cause"
	"boxgate/doctor/probe"
)

// Diagnosis is the result.
type Diagnosis struct {
	Box     string    `json:"box" doc:"name of the box, or its ID"`
	Host    string    `json:"host"`
	Port    uint16    `json:"port"`
	Path    string    `json:"path"`
	Refused []Refused `json:"refused,omitempty" doc:"addresses of the host that the gateway does not connect to"`
	Now     Current   `json:"now" doc:"how the box's own connections to the host are treated"`
	// Ways are [Direct], [Spliced], [Intercepted] and, if options may help, [Eased].
	Ways []Way `json:"ways"`
	// Inside is the view of curl in the box itself, nil if the box has none, or was attached.
	Inside   *Client        `json:"inside,omitempty" doc:"the view of curl in the box itself, under its own policy and rules"`
	Options  []cause.Option `json:"options,omitempty" doc:"of the header rule, tried on the last way"`
	Findings []Finding      `json:"findings"`
	Verdict  Verdict        `json:"verdict" enum:"same better worse unreachable" doc:"intercepted compared to directly"`
	Advice   []string       `json:"advice" doc:"what to do"`
	NotSeen  []Unseen       `json:"not_seen" doc:"differences that a diagnosis cannot see"`
	Millis   int64          `json:"duration_ms"`
	plain    bool
}

// Verdict compares an intercepted host to a directly opened one.
type Verdict string

// The verdicts.
const (
	Same        Verdict = "same"
	Better      Verdict = "better" // some clients work only when intercepted
	Worse       Verdict = "worse"  // it fails, or its responses differ, when intercepted
	Unreachable Verdict = "unreachable"
)

// Way has the observations on one way.
type Way struct {
	Name     string    `json:"name"`
	Works    bool      `json:"works" doc:"at least one client got a whole response of the server"`
	Attempts []Attempt `json:"attempts"`
	Lookup   string    `json:"lookup,omitempty" doc:"why the name has no address"`
	Subject  string    `json:"certificate,omitempty"`
	Offer    string    `json:"offer,omitempty" doc:"parameters of TLS that the gateway does not use by default"`
	Idle     string    `json:"idle,omitempty" doc:"of a connection after its response"`
	Clients  []Client  `json:"clients"`
}

// Attempt is a connection to one address.
type Attempt struct {
	Address string `json:"address"`
	Error   string `json:"error,omitempty"`
}

// Client is the view of one client: strict is net/http and crypto/tls; lenient accepts old TLS and malformed responses.
type Client struct {
	Name    string            `json:"name" enum:"strict lenient curl"`
	Error   string            `json:"error,omitempty"`
	TLS     string            `json:"tls,omitempty" doc:"version, cipher suite, group"`
	ALPN    string            `json:"alpn,omitempty"`
	Proto   string            `json:"proto,omitempty"`
	Status  int               `json:"status,omitempty"`
	Framing string            `json:"framing,omitempty"`
	Fields  map[string]string `json:"fields,omitempty"`
	Bytes   int               `json:"bytes"`
	Digest  string            `json:"digest,omitempty"`
	Refusal string            `json:"refusal,omitempty" doc:"of the gateway"`
}

// Finding is a property of the server.
type Finding struct {
	ID     cause.ID `json:"id"`
	What   string   `json:"what"`
	Remedy string   `json:"remedy,omitempty"`
}

// shown returns text of a server without control bytes, invalid UTF-8 and invisible runes.
func shown(text string) string {
	q := strconv.QuoteToASCII(text)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// add adds the report of a way.
func (d *Diagnosis) add(name string, r probe.Report) {
	w := Way{Name: name, Lookup: shown(r.Lookup), Subject: shown(r.Subject), Offer: shown(r.Offer), Idle: shown(r.Idle), Attempts: []Attempt{}, Clients: []Client{}}
	for _, a := range r.Attempts {
		w.Attempts = append(w.Attempts, Attempt{a.Addr.String(), shown(a.Error)})
	}
	for _, c := range r.Clients {
		client := Client{
			Name: shown(c.Name), Error: shown(c.Error), ALPN: shown(c.ALPN), Proto: shown(c.Proto), Status: c.Status, Framing: shown(c.Framing), Bytes: c.Bytes, Digest: shown(c.Digest), Refusal: shown(c.Refusal),
			TLS: shown(strings.TrimSpace(c.Version + " " + c.Suite + " " + c.Group)), Fields: map[string]string{},
		}
		for k, v := range c.Fields {
			client.Fields[shown(k)] = shown(v)
		}
		w.Clients = append(w.Clients, client)
	}
	w.Works = d.plain && w.Reachable() || slices.ContainsFunc(w.Clients, Client.works)
	d.Ways = append(d.Ways, w)
}

// works reports whether a client got a whole response of the server.
func (c Client) works() bool { return c.Error == "" && c.Status != 0 && c.Refusal == "" }

// Reachable reports whether an address accepted a connection.
func (w Way) Reachable() bool {
	return slices.ContainsFunc(w.Attempts, func(a Attempt) bool { return a.Error == "" })
}

// client returns the view of a client.
func (w Way) client(name string) Client {
	for _, c := range w.Clients {
		if c.Name == name {
			return c
		}
	}
	return Client{Error: "was not run"}
}

// way returns a way, or the zero value.
func (d *Diagnosis) way(name string) Way {
	for _, w := range d.Ways {
		if w.Name == name {
			return w
		}
	}
	return Way{}
}

// options returns the options of header rules that may help.
func (d *Diagnosis) options(causes []cause.ID) (out []cause.Option) {
	for _, id := range causes {
		if o := cause.Of(id).Option; o != "" && !slices.Contains(out, o) && !slices.Contains(d.Now.Options, o) {
			out = append(out, o)
		}
	}
	return out
}

// fails reports whether a client fails on a way that works directly, or all do.
func (d *Diagnosis) fails(name string) bool {
	w := d.way(name)
	return !w.Works || slices.ContainsFunc(d.way(Direct).Clients, func(c Client) bool { return c.works() && !w.client(c.Name).works() })
}

// others are the causes for which neither client of a diagnosis works directly, but clients with another TLS library do.
var others = []cause.ID{cause.UnsupportedSuite, cause.UnsupportedGroup, cause.UnsupportedKey, cause.OldTLS, cause.CutHead}

// othersWork reports whether clients may work although both clients of the diagnosis fail.
func othersWork(ids []cause.ID) bool {
	return slices.ContainsFunc(ids, func(id cause.ID) bool { return slices.Contains(others, id) })
}

// conclude compares the ways.
func (d *Diagnosis) conclude(direct probe.Report) {
	ids := slices.Clone(direct.Causes)
	at, over := d.way(Direct), d.way(Intercepted)
	switch {
	case !at.Reachable():
		d.Verdict = Unreachable
	case d.plain:
		d.Verdict = Same
	case !over.Works && !at.Works && !othersWork(ids):
		d.Verdict = Same
	case !over.Works:
		d.Verdict = Worse
	default:
		ids = d.compare(at, over, ids)
	}
	if at.Works && !d.way(Spliced).Works {
		ids = append(ids, cause.SplicedFails)
	}
	if d.Verdict == Worse && !slices.ContainsFunc(ids, func(id cause.ID) bool { return cause.Of(id).Remedy != "" || id == cause.Differs }) {
		ids = append(ids, cause.Unknown)
	}
	d.Findings = []Finding{}
	for _, c := range cause.All {
		if slices.Contains(ids, c.ID) {
			d.Findings = append(d.Findings, d.finding(c))
		}
	}
	d.Advice = d.advice()
	d.NotSeen = NotSeen
}

// compare sets the verdict of a host that works when intercepted.
func (d *Diagnosis) compare(at, over Way, ids []cause.ID) []cause.ID {
	strict, lenient := at.client(probe.Strict), at.client(probe.Lenient)
	d.Verdict = Same
	if !strict.works() || slices.ContainsFunc(ids, func(id cause.ID) bool { return cause.Of(id).Aside != "" }) {
		d.Verdict = Better
	}
	before := strict
	if !before.works() {
		before = lenient
	}
	varies := slices.Contains(ids, cause.Varies)
	for _, c := range at.Clients { // spliced, the same client gets the same bytes
		if same := d.way(Spliced).client(c.Name); !varies && c.works() && same.works() && c.Digest != same.Digest {
			ids, varies = append(ids, cause.Varies), true
		}
	}
	if !over.client(probe.Strict).works() || d.fails(Intercepted) {
		d.Verdict = Worse
		return ids
	}
	if after := over.client(probe.Strict); before.works() && (before.Status != after.Status || !varies && before.Digest != after.Digest) {
		d.Verdict = Worse
		return append(ids, cause.Differs)
	}
	return ids
}

// finding describes a cause, with the remedy that applies to the verdict.
func (d *Diagnosis) finding(c cause.Cause) Finding {
	f := Finding{ID: c.ID, What: c.What}
	switch {
	case c.Option != "" && slices.Contains(d.Now.Options, c.Option):
		f.Remedy = "the rule has " + string(c.Option)
	case c.Remedy != "" && d.Verdict != Better:
		f.Remedy = c.Remedy
	case c.Aside != "":
		f.Remedy = c.Aside
	}
	return f
}

// advice returns the next steps.
func (d *Diagnosis) advice() (out []string) {
	at := d.Host
	if d.Port != 443 {
		at = fmt.Sprintf("%s:%d", d.Host, d.Port)
	}
	switch d.Verdict {
	case Unreachable:
		return []string{"the host of the gateway cannot connect: check the name, the port and the network"}
	case Same, Better:
		out = append(out, "interception is not needed for this server to work, and does no harm: use a rule only for its effects")
		if d.Verdict == Better {
			out[0] = "clients that fail at this server work when it is intercepted"
		}
		if !d.way(Intercepted).Works {
			out[0] = "the server fails on every way: repair it"
		}
		if d.plain {
			out[0] = "header rules do not apply here: the port has no TLS"
		}
	case Worse:
		if d.way(Eased).Works && !d.fails(Eased) {
			out = append(out, fmt.Sprintf("tried, and it works: gateway headers set --box %s %s --%s, with the effects of your rule", d.Box, at, strings.Join(flags(d.Options), " --")))
		}
		out = append(out, fmt.Sprintf("if no rule is needed, spliced works: gateway headers rm --box %s %s", d.Box, at))
	}
	return out
}

// flags returns the flags of `gateway headers set` for options.
func flags(options []cause.Option) (out []string) {
	for _, o := range options {
		switch o {
		case cause.UpstreamTLS:
			out = append(out, "upstream-tls legacy")
		case cause.Lenient:
			out = append(out, "lenient")
		}
	}
	return out
}

// Unseen is something that a diagnosis cannot see.
type Unseen struct {
	ID   string `json:"id"`
	What string `json:"what"`
}

// NotSeen lists all of it.
var NotSeen = []Unseen{
	{"client-tls", "clients with TLS of their own: only RSA or DHE key exchange, a server name that ends in a dot, pinned certificates"},
	{"client-http", "requests other than one GET without credentials: a Host that ends in a dot, uploads, upgrades, logins, pipelining, half-closed connections"},
	{"other-requests", "other paths, and servers that behave differently for each client or time"},
	{"longer-idle", "connections that are silent for longer than --idle"},
}
