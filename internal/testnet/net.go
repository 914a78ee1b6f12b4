package testnet

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
)

// Options configure an internet.
type Options struct {
	// Logf logs errors of the servers, such as a handshake aborted by a client. nil discards them.
	Logf func(format string, args ...any)
	// Capture counts every packet that reaches the internet namespace, of any protocol: see [Net.Packets]. It costs
	// throughput.
	Capture bool
}

// Net is an internet. Safe for concurrent use.
type Net struct {
	*servers // in the internet namespace

	gateway *NS
	packets packets

	routesMu           sync.Mutex
	predefined, routed []netip.Addr // addresses of predefined and of other hosts, outside the hosted ranges

	closeOnce sync.Once
	closeErr  error
}

// New creates an internet with the predefined hosts and returns when its servers listen. ctx bounds only the setup;
// [Net.Close] ends it.
func New(ctx context.Context, o Options) (*Net, error) {
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	n := &Net{}
	if err := n.build(ctx, o); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Net) build(ctx context.Context, o Options) (err error) {
	if n.gateway, err = NewNS(); err != nil {
		return err
	}
	internet, err := NewNS()
	if err != nil {
		return err
	}
	if n.servers, err = newServers(internet, newZone(), &recorder{}, o.Logf); err != nil {
		return errors.Join(err, internet.close())
	}
	capture := func() error { return nil }
	if o.Capture {
		capture = func() error { return n.packets.capture(internet, o.Logf) }
	}
	connect := func() error { return connect(n.gateway, internet) }
	for _, step := range []func() error{connect, n.usualHosts, capture, n.serve, ctx.Err} {
		if err := step(); err != nil {
			return err
		}
	}
	n.lasting = len(n.closers)
	return nil
}

// Close stops the servers, kills the processes still in the two namespaces, and removes the link and the namespaces.
// Further calls are no-ops.
func (n *Net) Close() error {
	n.closeOnce.Do(func() {
		namespaces := []*NS{n.gateway}
		if n.servers != nil {
			namespaces = append(namespaces, n.internet)
			n.closeErr = errors.Join(n.servers.Close(), n.packets.Close())
		}
		for _, ns := range namespaces {
			if ns != nil && ns.inode != 0 {
				n.closeErr = errors.Join(n.closeErr, ns.KillProcesses(), removeLinks(ns), ns.close())
			}
		}
	})
	return n.closeErr
}

// Gateway returns the namespace for the gateway under test. Its default routes lead to the internet.
func (n *Net) Gateway() *NS { return n.gateway }

// Internet returns the namespace of the servers. Other clients on the internet connect from there to the gateway at
// [Net.GatewayAddrs].
func (n *Net) Internet() *NS { return n.internet }

// GatewayAddrs returns the addresses of the gateway's namespace on the internet.
func (n *Net) GatewayAddrs() (v4, v6 netip.Addr) { return gatewayV4, gatewayV6 }

// CAPEM returns the certificate of the CA that signs for the honest hosts.
func (n *Net) CAPEM() []byte { return n.honest.pem }

// Roots returns a pool with only the CA that signs for the honest hosts.
func (n *servers) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(n.honest.cert)
	return pool
}

// DNSServers returns the addresses of the DNS server, as host:port, reached by UDP and TCP. DNS over TLS is on port 853
// of the same hosts, under the name dns.example.com.
func (n *Net) DNSServers() []string {
	return []string{netip.AddrPortFrom(dnsV4, 53).String(), netip.AddrPortFrom(dnsV6, 53).String()}
}

// TB is the part of [testing.TB] that [ForTest] needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// ForTest creates an internet that lasts as long as the test.
func ForTest(tb TB, o Options) *Net {
	tb.Helper()
	n, err := New(context.Background(), o)
	if err != nil {
		tb.Fatalf("test internet: %v", err)
	}
	tb.Cleanup(func() {
		if err := n.Close(); err != nil {
			tb.Fatalf("closing the test internet: %v", err)
		}
	})
	return n
}

// Addresses of the DNS server and of dishonest hosts.
var (
	dnsV4, dnsV6 = netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8:53::53")

	metadataV4 = netip.MustParseAddr("169.254.169.254")
	badCertV4  = netip.MustParseAddr("198.51.100.66")
	badCertV6  = netip.MustParseAddr("2001:db8:1::66")

	attackerV4 = netip.MustParsePrefix("203.0.113.0/24")
	attackerV6 = netip.MustParsePrefix("2001:db8:bad::/48")
)

// usual are the predefined hosts.
var usual = map[string][]string{
	"dns.example.com":      {"192.0.2.53", "2001:db8:53::53"},
	"api.example.com":      {"198.51.100.10", "2001:db8:1::10"},
	"www.example.com":      {"198.51.100.11", "2001:db8:1::11"},
	"plain.example.com":    {"198.51.100.12", "2001:db8:1::12"},
	"ws.example.com":       {"198.51.100.13", "2001:db8:1::13"},
	"git.example.com":      {"198.51.100.14", "2001:db8:1::14"},
	"cdn.example.org":      {"198.51.100.20", "2001:db8:1::20"},
	"static.example.org":   {"198.51.100.20", "2001:db8:1::20"},
	"v4only.example.com":   {"198.51.100.30"},
	"v6only.example.com":   {"2001:db8:1::30"},
	"multi.example.com":    {"198.51.100.40", "198.51.100.41", "2001:db8:1::40", "2001:db8:1::41"},
	"bad-cert.example.com": {"198.51.100.66", "2001:db8:1::66"},
	"evil.example.net":     {"203.0.113.10", "2001:db8:bad::10"},
	"other.evil.net":       {"203.0.113.11", "2001:db8:bad::11"},
	"metadata.example.net": {"169.254.169.254"},
	"private.example.net":  {"10.0.0.5", "fd00::5"},
	"rebind.example.com":   {"198.51.100.50", "2001:db8:1::50"},
}

// isAttacker reports whether an address is one of the attacker's.
func isAttacker(a netip.Addr) bool { return attackerV4.Contains(a) || attackerV6.Contains(a) }

// isTrusted reports whether the host at an address has a certificate of the test CA.
func isTrusted(a netip.Addr) bool { return !isAttacker(a) && a != badCertV4 && a != badCertV6 }

// usualHosts creates the predefined hosts.
func (n *Net) usualHosts() error {
	for name, addrs := range usual {
		if err := n.AddHost(name, addrs...); err != nil {
			return err
		}
	}
	err := n.SetRecords("alias.example.com", "alias.example.com. 60 IN CNAME cdn.example.org.")
	n.zone.keepPredefined()
	n.predefined, n.routed = n.routed, nil
	return err
}

// AddHost replaces the addresses of a name and makes the servers listen on them. Addresses may be of any range,
// including private ones.
func (n *Net) AddHost(name string, addrs ...string) error {
	parsed := make([]netip.Addr, len(addrs))
	for i, s := range addrs {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
		if err := n.route(a); err != nil {
			return err
		}
		parsed[i] = a
	}
	n.zone.setAddrs(name, parsed)
	return nil
}

// route ensures that an address belongs to the internet namespace.
func (n *Net) route(a netip.Addr) error {
	n.routesMu.Lock()
	defer n.routesMu.Unlock()
	if isHosted(a) || slices.Contains(n.predefined, a) || slices.Contains(n.routed, a) {
		return nil
	}
	n.routed = append(n.routed, a)
	return withLinks(n.internet, func(h *netlink.Handle) error { return addLocalPrefix(h, netip.PrefixFrom(a, a.BitLen())) })
}

// unroute removes the addresses of hosts that are not predefined.
func (n *Net) unroute() error {
	n.routesMu.Lock()
	defer n.routesMu.Unlock()
	if len(n.routed) == 0 {
		return nil
	}
	err := withLinks(n.internet, func(h *netlink.Handle) (err error) {
		for _, a := range n.routed {
			err = errors.Join(err, removeLocalPrefix(h, netip.PrefixFrom(a, a.BitLen())))
		}
		return err
	})
	n.routed = nil
	return err
}

// Addrs returns the current addresses of a name.
func (n *Net) Addrs(name string) []netip.Addr { return n.zone.addrsOf(name) }

// SetRecords replaces all records of a name. Each record is in zone file form: "www.example.com. 60 IN CNAME
// cdn.example.org.". A name that begins with "*." is a wildcard for all names below. Without records the name is
// removed.
func (n *Net) SetRecords(name string, records ...string) error {
	var rrs []dns.RR
	for _, s := range records {
		rr, err := dns.NewRR(s)
		if err != nil {
			return fmt.Errorf("record %q: %w", s, err)
		}
		rrs = append(rrs, rr)
	}
	n.zone.set(name, rrs)
	return nil
}

// SetTTL changes the time to live of a name's records, in seconds.
func (n *Net) SetTTL(name string, ttl uint32) { n.zone.setTTL(name, ttl) }

// SetAnswerer makes f answer the queries for a name, for example with different addresses each time. nil removes it.
func (n *Net) SetAnswerer(name string, f Answerer) { n.zone.setAnswerer(name, f) }
