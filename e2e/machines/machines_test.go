package machines

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/e2e/machines/orders"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The policy of the machines: names, and an address for connections that the kernel forwards.
var (
	witness = [2]netip.Addr{netip.MustParseAddr("198.51.100.60"), netip.MustParseAddr("2001:db8:1::60")}
	target  = [2]netip.Addr{netip.MustParseAddr("198.51.100.61"), netip.MustParseAddr("2001:db8:1::61")} // of forged packets
)

func rules() map[string]any {
	var addrs []string
	for _, a := range append(witness[:], target[:]...) {
		addrs = append(addrs, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com"}, "allowed_cidrs": addrs}
}

// A virtual machine with Debian's kernel for clouds is a box like any other: its network, DNS, header injection, denials by name and
// address, a restart of the gateway, a policy that is tightened. Whatever frames it sends, none of the forged ones leaves.
func TestQEMUMachinesOnTaps(t *testing.T) {
	nightly.Only(t)
	w := harness.NewCaptured(t, func(c *config.Config) { c.Approvals.Enabled, c.Approvals.EveryBox = true, true })
	for _, a := range append(witness[:], target[:]...) {
		if err := w.Net.AddHost(fmt.Sprintf("host%x.example.org", a.AsSlice()), a.String()); err != nil {
			t.Fatal(err)
		}
	}
	computeChecksums(w)
	for _, mod := range models {
		t.Run(mod.name, func(t *testing.T) {
			began := time.Now()
			m := newMachine(w.On(t), mod, "--headers", `{"api.example.com":{"X-Key":"`+harness.Canary+`"}}`)
			m.SetPolicy(m.id, rules())
			m.configure()
			t.Logf("configured %.1f s after it was started (%s)", time.Since(began).Seconds(), acceleration)
			m.works("attached")
			m.resolves()
			m.forgesFrames()
			m.forgesNeighbours()
			if mod.header {
				m.forgesChecksums()
			}
			m.works("after the forged frames")
			m.outlivesTheGateway()
			if out, code := w.GatewayCommand("box", "detach", m.id); code != 0 {
				t.Error(out)
			}
		})
	}
}

// configure sets up the machine's network, and compares it with what the gateway has printed.
func (m *machine) configure() {
	m.T.Helper()
	order := orders.Order{Kind: orders.Configure, Clock: time.Now()}
	if m.static {
		order.Static = &orders.Network{Addresses: m.tap.Addresses, Routers: m.tap.Gateways, DNS: m.tap.Gateways[:1]}
	}
	n := m.must(order).Network
	if m.static {
		return
	}
	want := orders.Network{Addresses: []netip.Prefix{m.tap.Addresses[0], netip.PrefixFrom(m.tap.Addresses[1].Addr(), 128)},
		Routers: []netip.Addr{m.tap.Gateways[0], netip.MustParseAddr("fe80::1")}, DNS: m.tap.Gateways}
	if !slices.Equal(n.Addresses, want.Addresses) || !slices.Equal(n.Routers, want.Routers) || !slices.Equal(n.DNS, want.DNS) || n.MTU < 1280 {
		m.T.Errorf("the machine has %+v, want %+v", n, want)
	}
}

// works asserts what the policy and the header rules of the machine say.
func (m *machine) works(when string) {
	m.T.Helper()
	roots := m.must(orders.Order{Kind: orders.Fetch, Network: "tcp4", URL: "http://policy.boxgate.internal/ca.pem"})
	if roots.Status != 200 || !strings.Contains(roots.Text, "BEGIN CERTIFICATE") {
		m.T.Fatalf("%s: the CA: %+v", when, roots)
	}
	for _, family := range []string{"tcp4", "tcp6"} {
		a := m.must(orders.Order{Kind: orders.Fetch, Network: family, URL: "https://api.example.com/echo", Roots: roots.Text})
		if a.Status != 200 || !strings.Contains(a.Text, harness.Canary) {
			m.T.Errorf("%s: %s: %+v", when, family, a)
		}
		if a := m.do(orders.Order{Kind: orders.Fetch, Network: family, URL: "https://evil.example.net/"}); a.Error == "" || a.Timeout {
			m.T.Errorf("%s: %s: a host that is not allowed: %+v", when, family, a)
		}
	}
	m.Event(m.id, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "evil.example.net" })
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(m.V4("evil.example.net"), 4444), netip.AddrPortFrom(m.V6("evil.example.net"), 4444),
		netip.AddrPortFrom(m.tap.Gateways[0], 8600)} {
		a := m.do(orders.Order{Kind: orders.Open, Network: "tcp", Address: to.String(), Name: "denied"})
		if a.Error == "" { // the gateway accepts it, to see a name
			a = m.do(orders.Order{Kind: orders.Exchange, Name: "denied", Text: "hello"})
		}
		if a.Error == "" || a.Timeout {
			m.T.Errorf("%s: %v: %+v", when, to, a)
		}
	}
	m.NothingReached("evil.example.net")
}

// resolves asserts what DNS answers: names that the policy allows, from any server, and no others.
func (m *machine) resolves() {
	m.T.Helper()
	servers := []string{"192.0.2.99:53", netip.AddrPortFrom(m.V4("evil.example.net"), 53).String()}
	for _, s := range m.tap.Gateways {
		servers = append(servers, netip.AddrPortFrom(s, 53).String())
	}
	for _, server := range servers {
		for _, network := range []string{"udp", "tcp"} {
			a := m.must(orders.Order{Kind: orders.Resolve, Network: network, Address: server, Name: "www.example.com"})
			if a.Status != dns.RcodeSuccess || !slices.Contains(a.Addrs, m.V4("www.example.com")) || !slices.Contains(a.Addrs, m.V6("www.example.com")) {
				m.T.Errorf("%s by %s: %+v", server, network, a)
			}
			secret := "secret-" + m.id + ".evil.example.net"
			if a := m.do(orders.Order{Kind: orders.Resolve, Network: network, Address: server, Name: secret}); slices.Contains(a.Addrs, m.V4("evil.example.net")) {
				m.T.Errorf("%s by %s: a name that is not allowed: %+v", server, network, a)
			}
			if seen := m.Net.Queries(secret); len(seen) != 0 {
				m.T.Errorf("the name server received %+v", seen[0])
			}
		}
	}
	m.Event(m.id, func(e audit.Event) bool {
		return e.Stage == policy.StageDNS && e.Verdict == policy.Deny && e.Reason == name.ReasonNotAllowed
	})
	m.NothingReached("evil.example.net")
}

// outlivesTheGateway asserts that the machine's connections outlive a crash of the gateway, and end when the policy no longer allows
// them.
func (m *machine) outlivesTheGateway() {
	m.T.Helper()
	ask := func(when string) {
		for i := range witness {
			if a := m.do(orders.Order{Kind: orders.Exchange, Name: fmt.Sprint("kept ", i), Text: when}); a.Text != when {
				m.T.Errorf("%v %s: %+v", witness[i], when, a)
			}
		}
	}
	for i, a := range witness {
		m.must(orders.Order{Kind: orders.Open, Network: "tcp", Address: netip.AddrPortFrom(a, 4444).String(), Name: fmt.Sprint("kept ", i)})
	}
	ask("before the crash")
	m.Kill()
	ask("without a gateway")
	m.StartIfStopped()
	ask("after the crash")
	m.works("after the crash")
	m.must(orders.Order{Kind: orders.Open, Network: "tcp", Address: netip.AddrPortFrom(m.V4("www.example.com"), 80).String(), Name: "live"})
	m.must(orders.Order{Kind: orders.Exchange, Name: "live", Text: "GET /sse HTTP/1.1\r\nHost: www.example.com\r\n\r\n"})
	cut := m.begin(orders.Order{Kind: orders.Await, Name: "live"})
	began := time.Now()
	m.SetPolicy(m.id, map[string]any{"mode": "deny-all"})
	if a := cut(); a.Timeout {
		m.T.Errorf("the response was not cut: %s", a.Error)
	}
	m.T.Logf("a response was cut %v after the order to tighten the policy", time.Since(began).Round(time.Millisecond))
	for i, to := range witness { // forwarded by the kernel: the next packet is refused
		if a := m.do(orders.Order{Kind: orders.Exchange, Name: fmt.Sprint("kept ", i), Text: "cut"}); a.Error == "" || a.Timeout {
			m.T.Errorf("the connection to %v was not cut: %+v", to, a)
		}
	}
	if a := m.do(orders.Order{Kind: orders.Fetch, Network: "tcp4", URL: "https://api.example.com/echo"}); a.Error == "" {
		m.T.Errorf("deny-all: %+v", a)
	}
}
