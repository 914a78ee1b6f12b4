package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"boxgate/policy/name"
	"boxgate/rule"
)

// ProxyScheme is the protocol of an upstream proxy.
type ProxyScheme string

// The schemes.
const (
	ProxyHTTP   ProxyScheme = "http"   // CONNECT (RFC 9110, 9.3.6)
	ProxyHTTPS  ProxyScheme = "https"  // CONNECT inside TLS to the proxy, whose certificate is verified
	ProxySOCKS5 ProxyScheme = "socks5" // SOCKS version 5 (RFC 1928)
)

// defaultProxyPorts are the ports of proxies whose URL has no port.
var defaultProxyPorts = map[ProxyScheme]uint16{ProxyHTTP: name.HTTPPort, ProxyHTTPS: name.HTTPSPort, ProxySOCKS5: 1080}

// UpstreamSpec is an upstream proxy as written, for all connections of a box. Its credentials are in a header rule for its host and
// port, see [rule.ProxyLogin].
type UpstreamSpec struct {
	URL string `json:"url" doc:"http://, https:// or socks5://, a host and a port; without credentials, which an entry proxy of attach_headers has"`
	// ResolveThere are the names that the proxy resolves. The gateway resolves all others.
	ResolveThere []string `json:"resolve_there,omitempty" doc:"domains whose addresses the proxy finds out; \"*\" for all; those of others are found out here"`
}

// clone returns a deep copy.
func (s *UpstreamSpec) clone() *UpstreamSpec {
	if s == nil {
		return nil
	}
	return &UpstreamSpec{s.URL, slices.Clone(s.ResolveThere)}
}

// UpstreamProxy is a proxy for all connections to servers. Immutable and safe for concurrent use. Use [ParseUpstream] to make
// one.
type UpstreamProxy struct {
	Scheme ProxyScheme
	Name   name.Name  // of its host; zero if Addr is given
	Addr   netip.Addr // of its host; invalid if Name is given
	Port   uint16
	Login  rule.ProxyLogin // nil: no login

	there     []name.Pattern // names that the proxy resolves
	direct    []name.Pattern // names of servers that are connected to without the proxy
	directNet []netip.Prefix // likewise, of servers requested by address
	key       string
	fleet     bool        // Login is of a rule of the fleet
	fence     func() bool // of the policy
}

// Fenced reports whether the login must not be used now, see [Compiled.Fenced]. p must not be nil.
func (p *UpstreamProxy) Fenced() bool { return p.fleet && p.fence() }

// Secrets returns the names of the secrets of the configuration that the proxy's login needs. p may be nil.
func (p *UpstreamProxy) Secrets() []string {
	if p == nil || p.Login == nil {
		return nil
	}
	return p.Login.Sources()
}

const maxProxyURL = 2048

// ParseUpstream reads the URL of an upstream proxy, which must have neither credentials nor a path. The error completes a
// sentence about the URL and does not quote it.
func ParseUpstream(text string) (*UpstreamProxy, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" || len(text) > maxProxyURL {
		return nil, flawError("is not a URL such as http://proxy.example.com:3128")
	}
	p := &UpstreamProxy{Scheme: ProxyScheme(u.Scheme)}
	port, known := defaultProxyPorts[p.Scheme]
	switch {
	case !known:
		return nil, flawError("has a scheme other than http, https and socks5")
	case u.User != nil:
		return nil, flawError("has credentials, which do not belong into it")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#"):
		return nil, flawError("has more than a scheme, a host and a port")
	}
	p.Port = port
	if text := u.Port(); text != "" || strings.HasSuffix(u.Host, ":") {
		if p.Port, err = name.ParsePort(text); err != nil {
			return nil, flawError("has no valid port")
		}
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil && a.Zone() == "" {
		p.Addr = a.Unmap()
	} else if p.Name, err = name.Parse(u.Hostname()); err != nil || strings.Contains(u.Host, "[") {
		return nil, flawError("gives its host neither by name nor by address")
	}
	p.seal("")
	return p, nil
}

// Host returns the host of the proxy, a name or an address.
func (p *UpstreamProxy) Host() string {
	if p.Addr.IsValid() {
		return p.Addr.String()
	}
	return p.Name.String()
}

// URL returns the URL of the proxy, without credentials; "" for nil.
func (p *UpstreamProxy) URL() string {
	if p == nil {
		return ""
	}
	return string(p.Scheme) + "://" + net.JoinHostPort(p.Host(), strconv.Itoa(int(p.Port)))
}

// Key identifies the proxy together with the credentials of the gateway, without revealing them. Connections with the same key use the
// same path. It is "" for nil.
func (p *UpstreamProxy) Key() string {
	if p == nil {
		return ""
	}
	return p.key
}

// seal computes the key, as the last step. above is the key of the proxy that is used to connect to this one.
func (p *UpstreamProxy) seal(above string) {
	p.key = p.URL()
	if p.Login != nil {
		h := sha256.New()
		for _, s := range []string{p.Login.Username(), p.Login.Password().Source, p.Login.Password().Literal.Reveal()} {
			_ = binary.Write(h, binary.BigEndian, uint64(len(s))) // writes to a hash never fail
			h.Write([]byte(s))
		}
		p.key += " " + hex.EncodeToString(h.Sum(nil))
	}
	p.key += " " + above
}

// resolves reports whether the proxy resolves a name.
func (p *UpstreamProxy) resolves(n name.Name, port uint16) bool { return covered(p.there, n, port) }

// exceptsName reports whether servers of a name are connected to without the proxy.
func (p *UpstreamProxy) exceptsName(n name.Name, port uint16) bool { return covered(p.direct, n, port) }

// exceptsAddr is exceptsName for a server requested by address.
func (p *UpstreamProxy) exceptsAddr(a netip.Addr) bool {
	a = name.CanonicalAddr(a)
	return a.IsValid() && slices.ContainsFunc(p.directNet, func(n netip.Prefix) bool { return n.Contains(a) })
}

func covered(list []name.Pattern, n name.Name, port uint16) bool {
	return slices.ContainsFunc(list, func(p name.Pattern) bool { return p.Match(n, port) })
}

// except parses the exceptions from the proxy: domains, and networks of servers requested by address.
func (p *UpstreamProxy) except(direct []string) error {
	for _, s := range direct {
		if !name.MeansAddress(s) {
			pattern, err := name.ParsePattern(s)
			if err != nil {
				return err
			}
			p.direct = append(p.direct, pattern)
			continue
		}
		network, err := name.ParseCIDR(s)
		if err != nil {
			return err
		}
		p.directNet = append(p.directNet, network)
	}
	return nil
}

// leaveTo parses the domains that the proxy resolves.
func (p *UpstreamProxy) leaveTo(there []string) error {
	for _, s := range there {
		pattern, err := name.ParsePattern(s)
		if err != nil {
			return err
		}
		p.there = append(p.there, pattern)
	}
	return nil
}

// HostUpstream is the upstream proxy of the operator for all boxes. It may have any address.
type HostUpstream struct{ proxy *UpstreamProxy }

// NewHostUpstream makes p the proxy of all boxes. there are the names that it resolves, and direct the domains and networks that are
// excepted from it. The error is about an entry of these.
func NewHostUpstream(p UpstreamProxy, there, direct []string) (*HostUpstream, error) {
	p.there, p.direct, p.directNet = nil, nil, nil
	if err := p.leaveTo(there); err != nil {
		return nil, err
	}
	if err := p.except(direct); err != nil {
		return nil, err
	}
	p.seal("")
	return &HostUpstream{&p}, nil
}

// reach returns a policy for connections to the proxy.
func (h *HostUpstream) reach() *Compiled {
	out := build(Spec{Mode: ModeAllowAll}, parsedSpec{}, nil, 0)
	out.protected = &name.Protected{}
	return out
}

// setHostUpstream uses the operator's proxy for connections of the box. If the policy has a proxy of its own, the operator's is used to
// connect to that.
func (c *Compiled) setHostUpstream(h *HostUpstream) {
	if h == nil {
		return
	}
	for _, to := range []*Compiled{c.forwarding, c.reach} {
		if to != nil {
			to.upstream, to.reach = h.proxy, h.reach()
		}
	}
	if c.upstream != nil {
		c.upstream.seal(h.proxy.Key())
		return
	}
	c.upstream, c.reach = h.proxy, h.reach()
	c.plan.leaveNothing()
}

// newReach returns a policy for connections of the gateway that the rules of a box require. It allows everything except protected
// ranges.
func (c *Compiled) newReach(protected *name.Protected) *Compiled {
	out := build(Spec{Mode: ModeAllowAll}, parsedSpec{}, nil, c.version)
	out.protected = protected
	return out
}

// setUpstream uses the proxy of the policy for connections, with the login of a header rule for its host, port and
// scheme.
func (c *Compiled) setUpstream(s *UpstreamSpec) {
	if s == nil {
		return
	}
	p, err := ParseUpstream(s.URL)
	if err != nil || p.leaveTo(s.ResolveThere) != nil { // checked before
		p = &UpstreamProxy{}
	}
	if l := c.headers.proxies[headerKey{p.Name.String(), false, p.Port}]; l.ProxyLogin != nil && l.IsFor(string(p.Scheme)) {
		p.Login = l.ProxyLogin
		p.fleet, p.fence = l.fleet, c.fenced
	}
	p.seal("")
	c.upstream, c.reach = p, c.newReach(c.protected)
	c.plan.leaveNothing()
}

// Reach returns the policy for connections to the upstream proxy by. It is nil, and denies, unless that is the proxy of the
// policy.
func (c *Compiled) Reach(by *UpstreamProxy) *Compiled {
	if c == nil || c.upstream == nil || c.upstream.Key() != by.Key() {
		return nil
	}
	return c.reach
}

// ResolvedThere reports whether an upstream proxy resolves a name, so that the gateway does not.
func (c *Compiled) ResolvedThere(n name.Name) bool {
	return c != nil && c.upstream != nil && !n.IsService() && !c.cluster.Has(n) && c.upstream.resolves(n, 0) && !c.upstream.exceptsName(n, 0)
}

// by adds the upstream proxy and the source to a route that lets bytes pass. It refuses connections whose proxy or source would change. A name
// that a client only claims for an address is not an exception from the proxy. A service is connected to without either.
func (q *question) by(rt *Route) {
	p, from, r := q.upstream, q.source, &rt.Request
	if r.Name.IsService() || q.leadsToCluster(*r, rt.ByName) { // inside the host's network
		p, from = nil, Source{}
	}
	if p != nil && (rt.ByName && p.exceptsName(r.Name, r.Port) || !rt.ByName && p.exceptsAddr(r.Addr)) {
		p = nil
	}
	if q.e.Settled && (q.e.By != p.Key() || q.e.From != from) {
		*rt = q.refuse(*r, name.ReasonPolicyChanged, NeedNothing)
		return
	}
	rt.Upstream, rt.From = p, from
	rt.There = p != nil && rt.ByName && p.resolves(r.Name, r.Port) && (rt.Action == Broker || !q.isUnread())
}

// goesFar reports whether connections with a host name go to that name because of an upstream proxy, which resolves the name or has an
// exception for it.
func (q *question) goesFar(n name.Name) bool {
	return q.upstream != nil && !n.IsZero() && !q.leadsToCluster(Request{Name: n, Addr: q.r.Addr}, false) && q.resolvable(n)
}

// Settle completes the evidence for later calls of Route about a connection that uses this route. It binds the connection to
// the upstream proxy, or to a direct connection, and to the source. If credentials of the gateway may be sent, it binds the connection to
// the enforced policy.
func (rt *Route) Settle(e *Evidence) {
	e.Enforced = e.Enforced || !rt.Audited && (rt.Action == Broker || rt.Action == Forward && e.Opening == OpeningSecure)
	switch rt.Action {
	case AwaitServer, Splice, Forward, Broker:
		e.Settled, e.By, e.From = true, rt.Upstream.Key(), rt.From
	}
}

// ruleUpstream is the rule of decisions about traffic that upstream proxies do not accept.
const ruleUpstream = "only TCP goes by the upstream proxy"

// leaveNothing changes the plan so that the kernel forwards no packets: TCP goes to the gateway's proxy, which uses the upstream proxy, and
// everything else is refused.
func (p *KernelPlan) leaveNothing() {
	if p.DefaultAllow || len(p.Allowed) > 0 {
		p.SteerOther = name.PortSet{All: true}
	}
	p.DefaultAllow, p.Allowed = false, nil
	p.SteerAllowed, p.RejectUDP = name.PortSet{All: true}, name.PortSet{All: true}
}

// GoesWith reports whether connections use a proxy whose login needs a secret of the configuration, directly or to connect to another
// proxy.
func (c *Compiled) GoesWith(secret string) bool {
	if c == nil || c.upstream == nil {
		return false
	}
	l := c.upstream.Login
	return l != nil && l.Password().Source == secret || c.reach.GoesWith(secret)
}

// flawError completes a sentence.
type flawError string

// Error returns the flaw.
func (e flawError) Error() string { return string(e) }
