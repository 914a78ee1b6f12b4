package policy

import (
	"fmt"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// headerTable finds the header rules of a host. Every pattern has a port, by default 443.
type headerTable struct {
	placeholders bool // some rule has one
	matches      bool // some rule looks at header fields
	logins       name.PortSet
	proxies      map[headerKey]proxyLogin // logins of the gateway to upstream proxies
	rules        map[headerKey]*alternatives
	scrubs       map[hostKey]*hostScrub // nil: no rule scrubs
}

// proxyLogin is a login to an upstream proxy.
type proxyLogin struct {
	rule.ProxyLogin
	fleet bool // by a rule of the fleet
}

type headerKey struct {
	name string
	wild bool
	port uint16
}

// alternatives are the header rules of one pattern, in their order.
type alternatives struct {
	pattern name.Pattern
	list    []alternative
	applies bool // some rule changes or refuses something
	paths   bool // some rule looks at paths
	legacy  bool // some rule accepts old cipher suites from boxes
	fleet   bool // they are rules of the fleet
	needs   match.Needs
}

// alternative is a header rule with its compiled match.
type alternative struct {
	HeaderRule
	match *match.Conditions // nil: every request
}

func newHeaderTable(rules []HeaderRule, ps *document.Problems) headerTable {
	t := headerTable{}
	if len(rules) > 0 {
		t.rules = make(map[headerKey]*alternatives, len(rules))
	}
	var last headerKey
	for i, r := range rules {
		p := r.key()
		if p.Name().IsZero() {
			ps.Add(fmt.Sprintf("/attach_headers/%d", i), "has no host pattern")
		}
		key := headerKey{p.Name().String(), p.IsWildcard(), p.Port()}
		on := rule.Connections(r.Effects)
		if on.Proxy != nil { // does not apply to traffic of boxes
			if t.proxies == nil {
				t.proxies = map[headerKey]proxyLogin{}
			}
			t.proxies[key] = proxyLogin{on.Proxy, r.Fleet}
			continue
		}
		r.Connection = &on
		of := t.rules[key]
		if of != nil && (key != last || len(of.list) == MaxAlternatives) {
			ps.Add(document.Pointer("/attach_headers", r.Pattern.String()), "is a duplicate")
			continue
		}
		if of != nil && (on.Login != nil || of.list[0].Connection.Login != nil) || on.Login != nil && p.IsWildcard() {
			ps.Add(document.Pointer("/attach_headers", r.Pattern.String()), "is a login, which is for one host and has no alternatives")
			continue
		}
		if of == nil {
			of = &alternatives{pattern: r.Pattern}
			t.rules[key] = of
		}
		of.add(r, ps)
		last = key
		if on.Login != nil {
			t.logins.Add(p.Port())
		}
		t.placeholders = t.placeholders || len(r.Placeholders()) > 0
		t.matches = t.matches || !of.needs.IsZero()
	}
	t.scrubs = newHostScrubs(t.rules)
	return t
}

// Secrets returns the names of all secrets of the operator that the rule uses.
func (r *HeaderRule) Secrets() []string {
	var names []string
	for _, e := range r.Effects {
		if s, ok := e.(rule.Sourced); ok {
			names = append(names, s.Sources()...)
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// add adds the next rule of the pattern.
func (of *alternatives) add(r HeaderRule, ps *document.Problems) {
	a, does := alternative{HeaderRule: r}, rule.Requests(r.Effects)
	a.Request = &does
	if r.Match != nil {
		at := document.Element(document.Pointer("/attach_headers", r.Pattern.String()), len(of.list))
		a.match = match.Compile(at+"/match", *r.Match, ps)
		of.paths = of.paths || a.match.LooksAtPath()
		of.needs.Add(a.match.Needs())
	}
	of.applies = of.applies || r.Applies()
	of.fleet = of.fleet || r.Fleet
	of.legacy = of.legacy || r.OnConnections().LegacyClients
	of.list = append(of.list, a)
}

// find returns the rules of the most specific pattern that covers the name and port. It returns nil if the rules have no effect, and if the
// name or port is unknown.
func (t headerTable) find(n name.Name, port uint16) *alternatives {
	if len(t.rules) == 0 || n.IsZero() || port == 0 {
		return nil
	}
	of := t.rules[headerKey{n.String(), false, port}]
	for at := n.String(); of == nil; {
		dot := strings.IndexByte(at, '.')
		if dot < 0 {
			return nil
		}
		at = at[dot+1:]
		of = t.rules[headerKey{at, true, port}]
	}
	if !of.applies {
		return nil
	}
	return of
}

// HeaderPatterns returns the patterns of the header rules that do something, sorted.
func (c *Compiled) HeaderPatterns() (all []name.Pattern) {
	if c == nil {
		return nil
	}
	for _, of := range c.headers.rules {
		if of.applies {
			all = append(all, of.pattern.WithDefaultPort(name.HTTPSPort))
		}
	}
	slices.SortFunc(all, func(a, b name.Pattern) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// eachPlaceholder calls visit with the placeholders of all rules.
func (t headerTable) eachPlaceholder(visit func(rule.Placeholder)) {
	for _, of := range t.rules {
		for i := range of.list {
			for _, p := range of.list[i].Placeholders() {
				visit(p)
			}
		}
	}
}

// choose returns the first rule that certainly covers the request, or nil. A rule with Deny refuses requests that it possibly covers. If it is
// uncertain whether another rule covers the request, the request is refused as well: the next rule could send a secret that is
// meant for other requests. The decision is zero unless the request is refused.
func (of *alternatives) choose(r *Request) (*HeaderRule, Decision) {
	if of == nil {
		return nil, Decision{}
	}
	if first := &of.list[0]; first.match == nil && !first.Deny {
		return &first.HeaderRule, Decision{}
	}
	j := judge(r)
	if of.paths && j.IsAmbiguous() {
		return nil, Decision{Reason: name.ReasonAmbiguousPath, Rule: of.pattern.String()}
	}
	for i := range of.list {
		a := &of.list[i]
		switch f := a.fit(&j); {
		case f == match.Unfit:
		case a.Deny:
			return nil, Decision{Reason: name.ReasonHeaderRule, Rule: of.rule(i)}
		case f == match.Unsure:
			return nil, Decision{Reason: name.ReasonAmbiguousRequest, Rule: of.rule(i)}
		default:
			return &a.HeaderRule, Decision{}
		}
	}
	return nil, Decision{}
}

// rule returns the name of an alternative for decisions.
func (of *alternatives) rule(i int) string {
	if len(of.list) == 1 {
		return of.pattern.String()
	}
	return fmt.Sprintf("%s, alternative %d", of.pattern, i+1)
}

func (a *alternative) fit(r *match.Request) match.Fit {
	if a.match == nil {
		return match.Fits
	}
	return a.match.Fit(r)
}

// refuses returns the decision of the header rules of a host that refuse a request; the zero decision if they do not. A request that was
// judged when the rules did not look at its header fields is refused only by rules with Deny: its secrets have already been sent.
func (t headerTable) refuses(r *Request) Decision {
	of := t.find(r.Name, r.Port)
	if of == nil || of.known(r.Fields) {
		_, d := of.choose(r)
		return d
	}
	j := judge(r)
	for i := range of.list {
		a := &of.list[i]
		switch f := a.fit(&j); {
		case a.Deny && f > match.Unfit:
			return Decision{Reason: name.ReasonHeaderRule, Rule: of.rule(i)}
		case f == match.Fits:
			return Decision{}
		}
	}
	return Decision{}
}

// known reports whether all header fields that the rules look at are known.
func (of *alternatives) known(f *match.Fields) bool {
	if of.needs.IsZero() {
		return true
	}
	return f != nil && f.Needs.Covers(of.needs)
}

// shadows reports whether a rule more specific than p covers all of common.
func (t headerTable) shadows(common, p name.Pattern) bool {
	for _, of := range t.rules {
		if k := of.pattern.WithDefaultPort(name.HTTPSPort); k != p && k.Covers(common) && p.Covers(k) {
			return true
		}
	}
	return false
}

// HeaderRule returns the header rule for a request over TLS, or the zero rule: of the most specific pattern that covers the host,
// the first rule whose match covers the request. The decision is zero unless the rules refuse the request. While the fence is closed, all
// requests to hosts of the fleet's rules are refused: a rule that this host does not know yet may be for them.
func (c *Compiled) HeaderRule(r Request) (HeaderRule, Decision) {
	if c == nil {
		return HeaderRule{}, Decision{}
	}
	of := c.headers.find(r.Name, r.Port)
	if of != nil && of.fleet && c.fenced() {
		return HeaderRule{}, Decision{Reason: name.ReasonFleetFenced, Rule: of.pattern.String(), Version: c.version}
	}
	rule, d := of.choose(&r)
	var all HeaderRule
	switch {
	case d.Reason != "":
		d.Version = c.version
		return HeaderRule{}, d
	case rule != nil:
		all = *rule
	}
	c.headers.addHost(&all, r.Name)
	return all, d
}

// Fenced reports whether values of a rule of [Compiled.HeaderRule] must not be sent, because it is one of the fleet and the fence has closed
// since. It does not allocate.
func (c *Compiled) Fenced(r *HeaderRule) bool { return r.Fleet && c.fenced() }

// LoginFenced reports whether the login of [Compiled.Login] for a host and port must not be used, as [Compiled.Fenced] does for requests.
func (c *Compiled) LoginFenced(n name.Name, port uint16) bool {
	if c == nil {
		return true
	}
	of := c.headers.find(n, port)
	return of != nil && of.fleet && c.fenced()
}

// fenced reports whether the fence is closed. Without one it is: rules of the fleet are not used by a host without a fleet.
func (c *Compiled) fenced() bool { return c == nil || c.fence == nil || c.fence() }

// Needs returns the header fields that the rules for a host look at, or nil.
func (c *Compiled) Needs(n name.Name, port uint16) *match.Needs {
	if c == nil || !c.matches {
		return nil
	}
	var all match.Needs
	if of := c.headers.find(n, port); of != nil {
		all.Add(of.needs)
	}
	for i := range c.rules {
		if r := &c.rules[i]; r.Match.LooksAtFields() && r.Covers(n, port) {
			all.Add(r.Match.Needs())
		}
	}
	if above := c.ceiling.Needs(n, port); above != nil {
		all.Add(*above)
	}
	if all.IsZero() {
		return nil
	}
	return &all
}

// Login returns the login for a host and port, or nil. Other connections to a host and port with a login must be refused.
func (c *Compiled) Login(n name.Name, port uint16) rule.Login {
	if c == nil {
		return nil
	}
	return c.headers.login(n, port)
}

// LegacyClients reports whether TLS of a box for the name and port is accepted with old cipher suites.
func (c *Compiled) LegacyClients(n name.Name, port uint16) bool {
	if c == nil {
		return false
	}
	of := c.headers.find(n, port)
	return of != nil && of.legacy
}

func (t headerTable) login(n name.Name, port uint16) rule.Login {
	if !t.logins.Contains(port) {
		return nil
	}
	if of := t.find(n, port); of != nil {
		return of.list[0].Connection.Login
	}
	return nil
}

// hostKey is the pattern of a header rule without its port.
type hostKey struct {
	name string
	wild bool
}

// hostScrub is masked in all responses of a host, on every port and whether or not a rule applied: a server may show the secret of one request
// in the response to another one, also on another port.
type hostScrub struct {
	SharedScrub
	rules int // number of rules on ports with a rule that scrubs
}

// newHostScrubs collects the texts to mask by host. If some rule scrubs, hosts whose rules do not scrub have an entry as well, as they may be
// exceptions from a wildcard.
func newHostScrubs(rules map[headerKey]*alternatives) map[hostKey]*hostScrub {
	hosts, scrubs := map[hostKey][]headerKey{}, false
	for key, of := range rules {
		host := hostKey{key.name, key.wild}
		hosts[host] = append(hosts[host], key)
		scrubs = scrubs || of.scrubs()
	}
	if !scrubs {
		return nil
	}
	all := make(map[hostKey]*hostScrub, len(hosts))
	for host := range hosts {
		sum, seen := &hostScrub{}, map[uint16]bool{}
		for at, more := host, true; more; {
			for _, key := range hosts[at] {
				if !seen[key.port] { // otherwise a more specific pattern covers the port
					sum.add(rules[key])
				}
				seen[key.port] = true
			}
			at.wild = true
			_, at.name, more = strings.Cut(at.name, ".")
		}
		all[host] = sum
	}
	return all
}

// scrubs reports whether some alternative scrubs.
func (of *alternatives) scrubs() bool {
	return slices.ContainsFunc(of.list, func(a alternative) bool { return a.Scrub })
}

// add adds the rules of one port, if one of them scrubs.
func (h *hostScrub) add(of *alternatives) {
	if !of.scrubs() {
		return
	}
	note := func(literal name.Secret, source string) {
		if h.Sources = h.Sources || source != ""; source == "" {
			h.Literals = append(h.Literals, literal)
		}
	}
	for i := range of.list {
		rule.EachSent(of.list[i].Effects, note)
		h.Sources = h.Sources || of.list[i].Request.Later
	}
	h.rules += len(of.list)
}

// scrubOf returns the texts that are masked on every port of a host, possibly nil or empty.
func (t *headerTable) scrubOf(n name.Name) *hostScrub {
	if len(t.scrubs) == 0 || n.IsZero() {
		return nil
	}
	of := t.scrubs[hostKey{n.String(), false}]
	for _, at, more := strings.Cut(n.String(), "."); of == nil && more; _, at, more = strings.Cut(at, ".") {
		of = t.scrubs[hostKey{at, true}]
	}
	return of
}

// addHost adds the texts that are masked for other rules of the host to the rule of a request.
func (t *headerTable) addHost(rule *HeaderRule, n name.Name) {
	if of := t.scrubOf(n); of != nil && of.rules > 0 && (!rule.Scrub || of.rules > 1) {
		rule.Scrub, rule.Shared = true, &of.SharedScrub
	}
}

// ScrubRule returns the rule for requests over plain HTTP. It has no effects but masks the secrets that rules for the host send on other
// ports.
func (c *Compiled) ScrubRule(n name.Name) (rule HeaderRule) {
	if c != nil {
		c.headers.addHost(&rule, n)
	}
	return rule
}
