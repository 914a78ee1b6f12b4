// Package authority compares the destinations and requests that two policies allow.
//
// [Compare] asks both policies, by [policy.Compiled.Decide], about one name, one address and one port of each class that the
// entries of the policies tell apart. Its lines are therefore complete: they cover every destination that the second policy allows
// and the first does not. Request rules cannot be asked in this way. Their lines can cover more than the difference: each rule that
// denies is a line, unless the second policy has it too and no rule before it can allow the same requests.
package authority

import (
	"context"
	"slices"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// maxLines bounds the lines of a list.
const maxLines = 200

// Kind is the kind of a [Line].
type Kind string

// The kinds.
const (
	KindName     Kind = "name"     // connections to the names, and DNS queries for them
	KindQuery    Kind = "query"    // DNS queries alone
	KindAddress  Kind = "address"  // traffic to the addresses
	KindPort     Kind = "port"     // traffic to allowed addresses on a port
	KindRequest  Kind = "request"  // requests that a rule denied
	KindUnjudged Kind = "unjudged" // requests to hosts that no rule judges any more
	KindProxy    Kind = "proxy"    // connections go by another upstream proxy, or directly
)

// Line is authority that one policy gives and the other does not.
type Line struct {
	Kind      Kind              `json:"kind" enum:"name query address port request unjudged proxy"`
	Name      string            `json:"name,omitempty" doc:"a name, *.name for all below it, or * for every name"`
	Prefix    string            `json:"prefix,omitempty" doc:"addresses"`
	Some      bool              `json:"some,omitempty" doc:"some of the addresses were allowed before"`
	Ports     []uint16          `json:"ports,omitempty" doc:"absent: every port"`
	Protocols []policy.Protocol `json:"protocols,omitempty" doc:"of addresses and ports"`
	Hosts     []string          `json:"hosts,omitempty" doc:"of requests"`
	Methods   []string          `json:"methods,omitempty" doc:"of requests; absent: every method"`
	Paths     []string          `json:"paths,omitempty" doc:"of requests; absent: every path"`
	Rule      string            `json:"rule,omitempty" doc:"the rule that denied the requests, or judged them"`
	Headers   []string          `json:"headers,omitempty" doc:"header rules that cover some of the names: the box can now use what they set"`
	Wide      bool              `json:"wide,omitempty" doc:"anybody can have a name or an address in it: every name below a public suffix, or a large range"`
}

// SchemaName is the name in the description of the API.
func (Line) SchemaName() string { return "AuthorityLine" }

// SchemaName is the name in the description of the API.
func (Difference) SchemaName() string { return "AuthorityDifference" }

// Difference is the authority that one of two policies gives and the other does not.
type Difference struct {
	Gained []Line `json:"gained" doc:"at most 200"`
	Lost   []Line `json:"lost" doc:"at most 200"`
	More   int    `json:"more,omitempty" doc:"lines beyond these"`
}

// Compare compares the authority of two policies. They must be compiled with the same inputs, and without a ceiling and a quota: a
// destination can be denied by the ceiling under one name and not under another, which would hide a difference. What the ceiling denies
// is not reported separately.
func Compare(before, after *policy.Compiled) Difference {
	d, _ := CompareWithin(context.Background(), before, after) // that ends only with its context
	return d
}

// CompareWithin is [Compare] until ctx ends. Then there is no difference, as it would look complete, but the error of ctx.
func CompareWithin(ctx context.Context, before, after *policy.Compiled) (Difference, error) {
	d := Difference{Gained: gained(ctx, before, after), Lost: gained(ctx, after, before)}
	if err := ctx.Err(); err != nil {
		return Difference{}, err
	}
	for _, list := range []*[]Line{&d.Gained, &d.Lost} {
		if n := len(*list) - maxLines; n > 0 {
			*list, d.More = (*list)[:maxLines], d.More+n
		}
		if *list == nil {
			*list = []Line{}
		}
	}
	return d, nil
}

// gained returns the authority that after gives and before does not.
func gained(ctx context.Context, before, after *policy.Compiled) []Line {
	w := newWorld(before, after)
	w.ctx = ctx
	return slices.Concat(w.names(), w.addresses(), w.ports(), w.requests(), proxies(before.Spec(), after.Spec()))
}

// world is the pair of policies with the entries of both.
type world struct {
	ctx           context.Context // ends the comparison
	before, after *policy.Compiled
	patterns      []name.Pattern
	mentioned     map[string]bool // names of patterns
	addrs         []span
	allPorts      []uint16 // mentioned, or special to policies
	other         uint16   // a port in no entry
	headers       []name.Pattern
	// named and listed report whether both policies allow some names, or addresses. A destination that only one of them allows by its
	// name has a line for that name.
	named, listed bool
}

func newWorld(before, after *policy.Compiled) *world {
	a, b, was, is := before.Mentions(), after.Mentions(), before.Spec(), after.Spec()
	w := &world{before: before, after: after, patterns: append(a.Names, b.Names...), headers: after.HeaderPatterns(), other: 40_000}
	w.allPorts = []uint16{name.HTTPPort, name.HTTPSPort, 853}
	w.mentioned = make(map[string]bool, len(w.patterns))
	for _, p := range w.patterns {
		w.mentioned[p.Name().String()] = true
		if p.Port() != 0 {
			w.allPorts = append(w.allPorts, p.Port())
		}
	}
	slices.Sort(w.allPorts)
	w.allPorts = slices.Compact(w.allPorts)
	for slices.Contains(w.allPorts, w.other) {
		w.other++
	}
	w.named = (was.DefaultAllow() || len(was.AllowedDomains) > 0) && (is.DefaultAllow() || len(is.AllowedDomains) > 0)
	w.listed = listsAddresses(was) && listsAddresses(is)
	prefixes := append(a.Prefixes, b.Prefixes...)
	for _, p := range prefixes {
		if p.Addr().Is4() {
			prefixes = append(prefixes, name.Translated(p))
		}
	}
	w.addrs = spans(prefixes)
	return w
}

// ended reports whether the comparison is to end. The lines are not used then.
func (w *world) ended() bool { return w.ctx.Err() != nil }

// listsAddresses reports whether a policy allows some addresses under every name, or without one.
func listsAddresses(s policy.Spec) bool {
	return s.DefaultAllow() || len(s.AllowedCIDRs) > 0 || slices.ContainsFunc(s.AllowedDomains, func(d string) bool {
		p, err := name.ParsePattern(d)
		return err == nil && p.Name().IsZero()
	})
}

// state is the part of a decision that one property of a destination gives.
type state uint8

const (
	denied  state = iota // whatever the other properties are
	neutral              // unless another property is allowed
	allowed
)

// decide is Decide, but whether there is a service now does not matter, nor on which port: it may have one when the entry is used.
func decide(c *policy.Compiled, r policy.Request) policy.Decision {
	if r.Name.IsService() {
		return c.DecideListed(r)
	}
	return c.Decide(r)
}

// stateOf returns the state of a name or an address.
func stateOf(c *policy.Compiled, r policy.Request) state {
	switch d := decide(c, r); {
	case d.Allowed():
		return allowed
	case d.Reason == name.ReasonNotAllowed, d.Reason == name.ReasonProtocol, d.Reason == name.ReasonNoName:
		return neutral
	}
	return denied
}

// gains reports whether a property gives authority that it did not give. other reports that both policies may allow the other property.
func (w *world) gains(r policy.Request, other bool) bool {
	is := stateOf(w.after, r)
	return is > stateOf(w.before, r) && (is == allowed || other)
}

// requests returns the requests that the rules before deny and the rules after may allow.
func (w *world) requests() (lines []Line) {
	was, is := itemsOf(w.before.Spec()), itemsOf(w.after.Spec())
	for i, it := range was {
		if it.deny && !stillDenied(was[:i], it, is) {
			lines = append(lines, Line{Kind: KindRequest, Hosts: it.hosts, Methods: it.methods, Paths: it.paths, Rule: it.text})
		}
	}
	seen := map[string]bool{}
	for _, it := range was {
		for _, host := range it.hosts {
			if w.ended() {
				return nil
			}
			if !seen[host] && !judgedBy(host, is) {
				lines = append(lines, Line{Kind: KindUnjudged, Hosts: []string{host}, Rule: it.text})
			}
			seen[host] = true
		}
	}
	return lines
}

// stillDenied reports whether every request that a rule denied, after the rules in earlier have passed it, is denied by the rules
// in is: up to the same rule, they only deny, or would have decided before.
func stillDenied(earlier []item, it item, is []item) bool {
	for _, next := range is {
		switch {
		case next.key == it.key:
			return true
		case next.deny, slices.ContainsFunc(earlier, func(e item) bool { return e.key == next.key }):
		default:
			return false
		}
	}
	return false
}

// judgedBy reports whether some rule covers all of a host pattern.
func judgedBy(host string, items []item) bool {
	p, err := name.ParsePattern(host)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(items, func(it item) bool {
		return slices.ContainsFunc(it.hosts, func(h string) bool {
			q, err := name.ParsePattern(h)
			return err == nil && q.Covers(p)
		})
	})
}

// item is a request rule, or all rules for repositories.
type item struct {
	key, text             string
	deny                  bool
	hosts, methods, paths []string
}

func itemsOf(s policy.Spec) (items []item) {
	for _, r := range s.Rules {
		key := encoded(r)
		items = append(items, item{key: key, text: key, deny: r.Action == match.ActionDeny, hosts: r.Hosts, methods: r.Methods, paths: r.Paths})
	}
	if len(s.Repos) > 0 {
		hosts := []string{}
		for _, r := range s.Repos {
			if r.Host == "" {
				r.Host = "github.com"
			}
			if hosts = append(hosts, r.Host); r.Host == "github.com" {
				hosts = append(hosts, "api.github.com")
			}
		}
		slices.Sort(hosts)
		items = append(items, item{key: encoded(s.Repos), text: "repos", deny: true, hosts: slices.Compact(hosts)})
	}
	return items
}

// proxies returns a line if connections go another way.
func proxies(before, after policy.Spec) []Line {
	if encoded(before.UpstreamProxy) == encoded(after.UpstreamProxy) {
		return nil
	}
	return []Line{{Kind: KindProxy}}
}
