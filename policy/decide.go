package policy

import (
	"fmt"
	"net/netip"

	"boxgate/policy/content"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// BoxID identifies one sandbox. The gateway makes it. It is safe in file names, interface names and URLs
// (lower-case letters and digits, at most 32 bytes).
type BoxID string

// Stage is the part of the gateway that needs a decision.
type Stage string

// The stages, in the order a connection meets them.
const (
	StageDNS    Stage = "dns"    // a query for a name
	StageKernel Stage = "kernel" // a packet judged by nftables
	StageConn   Stage = "conn"   // a connection at the proxy, when its name is known or known to be absent
	StageHTTP   Stage = "http"   // one request inside a connection
	StageDial   Stage = "dial"   // the address about to be dialled
	StageURL    Stage = "url"    // a request to a public URL
)

// Protocol is the transport protocol of a destination.
type Protocol string

// The transport protocols that policies distinguish.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	ICMP Protocol = "icmp"
)

// Request describes a destination at a stage. Unknown fields are zero.
type Request struct {
	Stage    Stage
	Box      BoxID
	Name     name.Name  // SNI, Host or query name; zero if unknown
	Addr     netip.Addr // the destination address; invalid if unknown (DNS before resolution, the sink)
	Port     uint16     // destination port; 0 if unknown (DNS, ICMP)
	Protocol Protocol
	Method   string           // HTTP method, only at StageHTTP
	Path     string           // HTTP path without the query, only at StageHTTP
	Query    string           // HTTP query as sent, without "?", only at StageHTTP
	Fields   *match.Fields    // header fields that the policy looks at, see [Compiled.Needs], only at StageHTTP
	Content  *content.Content // messages that were read, see [Decision.Unread], only at StageHTTP
}

// Verdict is the outcome of a decision. The zero value is Deny.
type Verdict uint8

// The two verdicts.
const (
	Deny Verdict = iota
	Allow
)

// String returns "allow" or "deny"; any value but Allow is "deny".
func (v Verdict) String() string {
	if v == Allow {
		return "allow"
	}
	return "deny"
}

// MarshalText returns [Verdict.String] for JSON and logs.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText is the inverse of MarshalText. Any text but "allow" is Deny.
func (v *Verdict) UnmarshalText(b []byte) error {
	*v = Deny
	if string(b) == "allow" {
		*v = Allow
	}
	return nil
}

// Decision is the answer to a [Request]. The zero value denies.
type Decision struct {
	Verdict Verdict
	Reason  name.Reason
	Rule    string // the deciding rule as written, such as "*.github.com"; empty if no single rule decided
	Version uint64 // version of the policy that decided
	// DialName reports that the verdict applies to the name, and not to the address requested by the box: the proxy must dial an
	// address of the name, and get a decision about that at StageDial. If it is false, the address itself was allowed.
	DialName bool
	// Unread is the kind of messages that a request rule depends on and that Request.Content lacks. The decision denies; a caller
	// that has the body reads it and asks again.
	Unread content.Kind
	// Flaw describes why the messages of the request cannot be read.
	Flaw string
}

// Allowed reports whether the verdict is Allow.
func (d Decision) Allowed() bool { return d.Verdict == Allow }

// Err returns nil if the decision allows, else a *[DeniedError] with the decision and the request.
func (d Decision) Err(r Request) error {
	if d.Allowed() {
		return nil
	}
	return &DeniedError{Request: r, Decision: d}
}

// ShownRule returns the rule for the box: the entry of its own policy, but never a protected range. The matching range
// would reveal addresses of the host, and the addresses of names inside the host's network.
func (d Decision) ShownRule() string {
	if d.Reason == name.ReasonProtectedRange {
		return ""
	}
	return d.Rule
}

// DeniedError is the error of all denials. Each protocol maps it to an answer of its own with errors.As.
type DeniedError struct {
	Request  Request
	Decision Decision
}

// Error describes the destination, the reason and the rule.
func (e *DeniedError) Error() string { return e.text(e.Decision.Rule) }

// Shown is Error for the box: see [Decision.ShownRule].
func (e *DeniedError) Shown() string { return e.text(e.Decision.ShownRule()) }

func (e *DeniedError) text(rule string) string {
	what := e.Request.Name.String()
	if what == "" && e.Request.Addr.IsValid() {
		what = e.Request.Addr.String()
	}
	if what == "" {
		what = "destination"
	}
	if e.Request.Port != 0 {
		what = fmt.Sprintf("%s port %d", what, e.Request.Port)
	}
	text := fmt.Sprintf("%s denied: %s", what, e.Decision.Reason)
	if rule != "" {
		text += fmt.Sprintf(" (rule %q)", rule)
	}
	if asked := e.Request.Content.Summary(); asked != "" && e.Decision.Reason == name.ReasonRequestRule {
		text += ": " + asked
	}
	if e.Decision.Flaw != "" {
		text += ": " + e.Decision.Flaw
	}
	return text
}

// Box is a sandbox in the data path. Its addresses identify it: the kernel has checked the source address and the
// interface before any other part of the gateway sees a packet. ID and addresses never change.
type Box struct {
	ID     BoxID
	V4, V6 netip.Addr  // the box's own addresses
	Search []name.Name // the search list of its resolver, if known; never changes
	Policy Live
	Limits LiveLimits
}

// Ports with special rules in addition to the lists.
const (
	portDoT  = 853 // DNS over TLS (RFC 7858) and, by UDP, over QUIC (RFC 9250)
	portQUIC = 443 // HTTP/3 over UDP
)

// The names of these rules in decisions.
const (
	ruleQUIC = "UDP 443 while names decide on 443"
	ruleRule = "UDP on a port where a rule decides"
	ruleDoT  = "DNS over TLS only by allowed_cidrs"
	ruleDoQ  = "DNS over QUIC only by allowed_cidrs"
)

// Decide decides about a destination. It never fails, does not allocate unless a path needs resolving, and is safe for
// concurrent use. Unknown fields are zero: a DNS query has no port and no address, a packet in the kernel no name. The
// first applicable rule decides:
//
//  1. the address is protected: deny
//  2. the name matches denied_domains, or the address denied_cidrs: deny
//  3. the mode is deny-all: deny; neither name nor address is known: deny; the mode is allow-all: allow, as in 6
//  4. the address is in allowed_cidrs: allow
//  5. the name matches allowed_domains: allow, but only to an address of that name (DialName); a TCP connection
//     without a name is allowed by "*" alone, and where 6 allows one
//  6. custom with denied lists only: allow, but on a port where names matter (some are denied, or have header or request
//     rules) only to an address of the name that is given (DialName), and on 80, 443 and the ports that rules name not
//     without a name; otherwise deny
//
// Allowed destinations are then checked against the transport (UDP where names or rules decide, DNS over TLS or QUIC,
// protocols other than TCP, UDP and ICMP) and, for a request, against the request rules. They must also be allowed by the
// operator's ceiling, have a source address (see [Options.Source]), and not be withheld (see [Options.Withheld]). While the policy
// is audited (see [Options.Audit]), most denied traffic is allowed with reason would_deny, and its rule is allocated.
// A nil or zero policy denies. Names of services are decided by decideService
// instead of 1 to 6, and names of the cluster by decideCluster. Its service addresses are exempt from 1 if the policy lists them.
func (c *Compiled) Decide(r Request) Decision {
	if c == nil || c.domains == nil {
		return Decision{Reason: name.ReasonNoPolicy}
	}
	if c.auditing != nil {
		return c.decideAudited(r)
	}
	d := c.decide(r)
	if d.Verdict == Allow && c.ceiling != nil {
		d = c.ceiling.limit(r, d)
	}
	if d.Verdict == Allow {
		d = c.leaving(r, d)
	}
	if d.Verdict == Allow && c.withheld != nil {
		d = *c.withheld
	}
	d.Version = c.version
	return d
}

// decide is Decide without the ceiling and the version.
func (c *Compiled) decide(r Request) Decision {
	d := c.decideDestination(r)
	if d.Verdict == Allow && r.Stage != StageDNS {
		d = c.decideTransport(r, d)
	}
	if d.Verdict == Allow && r.Stage == StageHTTP && len(c.rules) > 0 {
		d = c.decideRequest(r, d)
	}
	return d
}

func (c *Compiled) decideDestination(r Request) Decision {
	if r.Name.IsService() {
		return c.decideService(r)
	}
	if c.cluster.Has(r.Name) {
		return c.decideCluster(r)
	}
	addr := name.CanonicalAddr(r.Addr)
	hasAddr, exempt := addr.IsValid(), false
	if hasAddr {
		var d Decision
		var protected bool
		if d, exempt, protected = c.judgeProtected(r, addr); protected {
			return d
		}
	}
	m := c.domains.match(r.Name, r.Port, r.Stage == StageDNS)
	if m.denied {
		return Decision{Reason: name.ReasonDeniedDomain, Rule: m.denyRule}
	}
	if hasAddr {
		if rule, in := c.denied.Lookup(addr); in {
			return Decision{Reason: name.ReasonDeniedCIDR, Rule: rule}
		}
	}
	if rule, in := c.deniesCluster(addr); in && hasAddr {
		return Decision{Reason: name.ReasonDeniedCIDR, Rule: rule}
	}
	switch {
	case c.spec.Mode == ModeDenyAll:
		return Decision{Reason: name.ReasonDenyAll}
	case !hasAddr && r.Name.IsZero():
		return Decision{Reason: name.ReasonNoName}
	case c.spec.Mode == ModeAllowAll:
		return c.decideOpen(r, name.ReasonAllowAll)
	}
	if exempt && c.listed.allowed != "" {
		return Decision{Verdict: Allow, Reason: name.ReasonAllowedCIDR, Rule: c.listed.allowed}
	}
	if hasAddr {
		if rule, in := c.allowed.Lookup(addr); in {
			return Decision{Verdict: Allow, Reason: name.ReasonAllowedCIDR, Rule: rule}
		}
	}
	if named(r) {
		if m.allowed {
			return Decision{Verdict: Allow, Reason: name.ReasonAllowedDomain, Rule: m.allowRule, DialName: true}
		}
		if rule, ok := c.anyName.find(r.Port); ok && r.Name.IsZero() {
			return c.unlessNameless(r, Decision{Verdict: Allow, Reason: name.ReasonAllowedDomain, Rule: rule})
		}
	}
	if c.open {
		return c.decideOpen(r, name.ReasonNotDenied)
	}
	return Decision{Reason: name.ReasonNotAllowed}
}

// decideOpen decides about destinations in no list. Where names matter, a name given by the client must be verified by dialling it.
func (c *Compiled) decideOpen(r Request, why name.Reason) Decision {
	d := Decision{Verdict: Allow, Reason: why}
	switch {
	case r.Name.IsZero() || !named(r):
	case r.Stage == StageDNS:
		d.DialName = len(c.spec.DeniedDomains) > 0
	default:
		d.DialName = c.namePorts.Contains(r.Port) || c.byName
	}
	return c.unlessNameless(r, d)
}

// unlessNameless denies connections without a name on ports where names matter and clients can always send one. Such a
// connection could be for a denied name, or for a host with rules.
func (c *Compiled) unlessNameless(r Request, d Decision) Decision {
	if !r.Name.IsZero() || r.Stage == StageDNS || !named(r) || !c.namePorts.Contains(r.Port) {
		return d
	}
	if r.Port == name.HTTPPort || r.Port == name.HTTPSPort || c.ruledPorts.Contains(r.Port) {
		return Decision{Reason: name.ReasonNoName}
	}
	return d
}

// named reports whether the name of a destination is reliable: TCP goes to the proxy, which dials the name. UDP and ICMP
// go to the address that the box chose, so that only the address counts.
func named(r Request) bool { return r.Stage == StageDNS || r.Protocol == TCP || r.Protocol == "" }

// decideTransport denies transports that are forbidden even to an allowed destination.
func (c *Compiled) decideTransport(r Request, d Decision) Decision {
	switch r.Protocol {
	case TCP, "":
		if r.Port == portDoT && d.Reason != name.ReasonAllowedCIDR {
			return Decision{Reason: name.ReasonProtocol, Rule: ruleDoT}
		}
	case UDP:
		switch {
		case c.upstream != nil:
			return Decision{Reason: name.ReasonProtocol, Rule: ruleUpstream}
		case r.Port == portDoT && d.Reason != name.ReasonAllowedCIDR:
			return Decision{Reason: name.ReasonProtocol, Rule: ruleDoQ}
		case !c.plan.RejectUDP.Contains(r.Port):
		case r.Port == portQUIC:
			return Decision{Reason: name.ReasonProtocol, Rule: ruleQUIC}
		default:
			return Decision{Reason: name.ReasonProtocol, Rule: ruleRule}
		}
	case ICMP:
		if c.upstream != nil {
			return Decision{Reason: name.ReasonProtocol, Rule: ruleUpstream}
		}
	default:
		return Decision{Reason: name.ReasonProtocol}
	}
	return d
}

// decideRequest applies the first matching request rule. If any rule covers the host, a path that servers may interpret
// differently is denied regardless of the rules.
func (c *Compiled) decideRequest(r Request, d Decision) Decision {
	var j match.Request
	for i := range c.rules {
		rule := &c.rules[i]
		if !rule.Covers(r.Name, r.Port) {
			continue
		}
		if j.IsZero() {
			if j = judge(&r); j.IsAmbiguous() {
				return Decision{Reason: name.ReasonAmbiguousPath, Rule: rule.Rule}
			}
		}
		switch rule.Apply(&j) {
		case match.Passes:
			continue
		case match.Unread:
			return Decision{Reason: name.ReasonUnreadableContent, Rule: rule.Rule, Unread: rule.Reads(), Flaw: "the body was not read"}
		case match.Unreadable:
			return Decision{Reason: name.ReasonUnreadableContent, Rule: rule.Rule, Flaw: r.Content.Flaw(rule.Reads())}
		case match.Decides:
		}
		d.Reason, d.Rule = name.ReasonRequestRule, rule.Rule
		if rule.Deny {
			d.Verdict, d.DialName = Deny, false
		}
		return d
	}
	return d
}

// RuleOf returns the rule of the policy's rules that decides about a request, or that depends on its body, which is not known. It returns
// false if no rule does, or if one of the repositories does.
func (c *Compiled) RuleOf(r Request) (match.RequestRule, bool) {
	if c == nil {
		return match.RequestRule{}, false
	}
	r.Content = nil
	j := judge(&r)
	for i := range min(len(c.rules), len(c.spec.Rules)) {
		if rule := &c.rules[i]; rule.Covers(r.Name, r.Port) && rule.Apply(&j) != match.Passes {
			return c.spec.Rules[i].Clone(), true
		}
	}
	return match.RequestRule{}, false
}

// judge returns a request for matchers.
func judge(r *Request) match.Request {
	return match.NewRequest(r.Method, r.Path, r.Query, r.Fields, r.Content)
}

// Unseen reports the unknown parts of a request that the rules for its host look at.
type Unseen struct{ Query, Headers, Body bool }

// Explanation is a decision with the reasons for it.
type Explanation struct {
	Decision
	Unseen Unseen   // parts of the request that may change the decision
	Beaten []string // entries of the policy for the destination that would have decided otherwise, and did not take precedence
}

// Explain is [Compiled.Decide], followed for requests by the header rules as over TLS. If a part of the request that rules look at is unknown,
// another query or other headers may change the decision. knowsQuery reports that an empty query is known to be empty.
func (c *Compiled) Explain(r Request, knowsQuery bool) Explanation {
	e := Explanation{Decision: c.Decide(r)}
	if c == nil {
		return e
	}
	e.Beaten = c.beaten(r, e.Decision)
	if r.Stage != StageHTTP {
		return e
	}
	metered := false
	if e.Allowed() && e.Reason != name.ReasonWouldDeny && r.Port != name.HTTPPort {
		switch rule, header := c.HeaderRule(r); {
		case header.Reason != "" && c.IsAudited():
			e.Decision, e.Beaten = e.insteadOf(header), nil
		case header.Reason != "":
			e.Decision, e.Beaten = header, nil
		default:
			metered = rule.OnRequests().Meter != nil && r.Method != "GET" && r.Method != "HEAD" && r.Method != "DELETE"
		}
	}
	e.Unseen = Unseen{
		Query:   r.Query == "" && !knowsQuery && c.looksAtQuery(r.Name, r.Port),
		Headers: r.Fields == nil && c.Needs(r.Name, r.Port) != nil,
		Body:    e.Unread != 0 || metered, // which is not read here: it may ask a model that the rule does not allow
	}
	return e
}

// beaten returns the most specific name and the most specific range of the list opposed to a decision by an entry of the policy that cover
// the destination.
func (c *Compiled) beaten(r Request, d Decision) (entries []string) {
	names, ranges := c.spec.AllowedDomains, c.spec.AllowedCIDRs
	switch {
	case IsOfCeiling(d.Rule):
		return nil
	case d.Reason == name.ReasonAllowedDomain || d.Reason == name.ReasonAllowedCIDR:
		names, ranges = c.spec.DeniedDomains, c.spec.DeniedCIDRs
	case d.Reason != name.ReasonDeniedDomain && d.Reason != name.ReasonDeniedCIDR:
		return nil
	}
	var longest name.Pattern
	for _, s := range names {
		if p, err := name.ParsePattern(s); err == nil && p.Match(r.Name, r.Port) && (longest.IsZero() || longest.WithPort(0).Covers(p)) {
			longest, entries = p, []string{s}
		}
	}
	addr, bits := name.CanonicalAddr(r.Addr), -1
	var narrowest string
	for _, s := range ranges {
		p, err := name.ParseCIDR(s)
		if err == nil && (p.Contains(addr) || p.Contains(name.Untranslated(addr))) && p.Bits() > bits {
			narrowest, bits = s, p.Bits()
		}
	}
	if bits >= 0 {
		entries = append(entries, narrowest)
	}
	return entries
}

// Judging tells what decides about the requests to a host. The zero value is a host whose requests are not judged.
type Judging struct {
	Rules    bool // some rule judges requests, at least by their methods
	Path     bool // and the path matters
	Query    bool // and the query matters
	Headers  bool // and header fields matter
	Messages bool // and messages in bodies matter
}

// Judges returns what decides about requests to a host: its request rules, the rules of the ceiling, and header rules that can refuse.
func (c *Compiled) Judges(n name.Name, port uint16) (j Judging) {
	if c == nil {
		return j
	}
	j = c.ceiling.Judges(n, port)
	for i := range c.rules {
		if r := &c.rules[i]; r.Covers(n, port) {
			j.Rules, j.Path, j.Query = true, j.Path || r.LooksAtPath(), j.Query || r.Match.LooksAtQuery()
			j.Messages = j.Messages || r.Reads() != 0
		}
	}
	if of := c.headers.find(n, port); of != nil {
		for i := range of.list {
			a := &of.list[i]
			j.Rules, j.Path, j.Query = j.Rules || a.Deny || a.match != nil, j.Path || of.paths, j.Query || a.match.LooksAtQuery()
		}
	}
	j.Headers = c.Needs(n, port) != nil
	return j
}

// JudgesValues reports whether rules for a host look at the value of a parameter of a query. The values in query do not matter.
func (c *Compiled) JudgesValues(n name.Name, port uint16, query string) bool {
	if c == nil {
		return false
	}
	for i := range c.rules {
		if r := &c.rules[i]; r.Covers(n, port) && r.Match.LooksAtValues(query) {
			return true
		}
	}
	if of := c.headers.find(n, port); of != nil {
		for i := range of.list {
			if of.list[i].match.LooksAtValues(query) {
				return true
			}
		}
	}
	return c.ceiling.JudgesValues(n, port, query)
}

// JudgesAddresses reports whether the policy or its ceiling lists addresses.
func (c *Compiled) JudgesAddresses() bool {
	return c != nil && (len(c.spec.AllowedCIDRs)+len(c.spec.DeniedCIDRs)+len(c.spec.overruling) > 0 || c.ceiling.JudgesAddresses())
}

// looksAtQuery reports whether rules for a host look at queries.
func (c *Compiled) looksAtQuery(n name.Name, port uint16) bool {
	if of := c.headers.find(n, port); of != nil {
		for i := range of.list {
			if of.list[i].match.LooksAtQuery() {
				return true
			}
		}
	}
	for i := range c.rules {
		if r := &c.rules[i]; r.Match.LooksAtQuery() && r.Covers(n, port) {
			return true
		}
	}
	return false
}
