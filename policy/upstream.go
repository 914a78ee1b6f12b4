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
)

// ProxyScheme is how an upstream proxy is spoken to.
type ProxyScheme string

// The schemes.
const (
	ProxyHTTP   ProxyScheme = "http"   // CONNECT (RFC 9110, 9.3.6)
	ProxyHTTPS  ProxyScheme = "https"  // CONNECT inside TLS to the proxy, whose certificate is verified
	ProxySOCKS5 ProxyScheme = "socks5" // SOCKS version 5 (RFC 1928)
)

// defaultProxyPorts are those of proxies whose URL has no port.
var defaultProxyPorts = map[ProxyScheme]uint16{ProxyHTTP: name.HTTPPort, ProxyHTTPS: name.HTTPSPort, ProxySOCKS5: 1080}

// UpstreamSpec is an upstream proxy as written: all connections of a box go by it. Its credentials are not in it: they are
// given to its host and port by a header rule, see [ProxyLogin].
type UpstreamSpec struct {
	URL string `json:"url" doc:"http://, https:// or socks5://, a host and a port; without credentials, which an entry proxy of attach_headers has"`
	// ResolveThere are the names that the proxy resolves. All others are resolved by the gateway.
	ResolveThere []string `json:"resolve_there,omitempty" doc:"domains whose addresses the proxy finds out; \"*\" for all; those of others are found out here"`
}

// clone returns a copy that shares nothing with s.
func (s *UpstreamSpec) clone() *UpstreamSpec {
	if s == nil {
		return nil
	}
	return &UpstreamSpec{s.URL, slices.Clone(s.ResolveThere)}
}

// UpstreamProxy is a proxy by which connections to servers are made: the bytes pass through it, and nothing goes past it.
// Immutable and safe for concurrent use. [ParseUpstream] makes one.
type UpstreamProxy struct {
	Scheme ProxyScheme
	Name   name.Name  // of its host; zero if Addr is given
	Addr   netip.Addr // of its host; invalid if Name is given
	Port   uint16
	Login  *ProxyLogin // nil: none

	there     []name.Pattern // names that it resolves
	direct    []name.Pattern // names whose servers are connected to without it
	directNet []netip.Prefix // the same of servers that were asked for by address
	key       string
}

const maxProxyURL = 2048

// ParseUpstream reads the URL of an upstream proxy, which has neither credentials nor a path. The error completes a
// sentence about the URL, and quotes nothing of it.
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

// URL returns the URL of the proxy, which has no credentials; "" for nil.
func (p *UpstreamProxy) URL() string {
	if p == nil {
		return ""
	}
	return string(p.Scheme) + "://" + net.JoinHostPort(p.Host(), strconv.Itoa(int(p.Port)))
}

// Key identifies the proxy together with what the gateway authenticates by: connections of the same key go the same way.
// It is "" for nil, and shows no credential.
func (p *UpstreamProxy) Key() string {
	if p == nil {
		return ""
	}
	return p.key
}

// seal computes the key, last of all. above is that of the proxy by which this one is reached.
func (p *UpstreamProxy) seal(above string) {
	p.key = p.URL()
	if p.Login != nil {
		h := sha256.New()
		for _, s := range []string{p.Login.User, p.Login.Source, p.Login.Password.Reveal()} {
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

// exceptsAddr is exceptsName for a server that is asked for by its address.
func (p *UpstreamProxy) exceptsAddr(a netip.Addr) bool {
	a = name.CanonicalAddr(a)
	return a.IsValid() && slices.ContainsFunc(p.directNet, func(n netip.Prefix) bool { return n.Contains(a) })
}

func covered(list []name.Pattern, n name.Name, port uint16) bool {
	return slices.ContainsFunc(list, func(p name.Pattern) bool { return p.Match(n, port) })
}

// except parses what is reached without the proxy: domains, and networks of servers that are asked for by address.
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
