package resources

import (
	"net/netip"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
	"boxgate/policy/name"
)

// sourceWorld is a gateway with four source addresses, which its host does not have yet.
type sourceWorld struct {
	*harness.World
	v4, v6 [2]netip.Addr
}

func newSourceWorld(t *testing.T) *sourceWorld {
	t.Helper()
	s := &sourceWorld{
		v4: [2]netip.Addr{netip.MustParseAddr("192.0.2.241"), netip.MustParseAddr("192.0.2.242")},
		v6: [2]netip.Addr{netip.MustParseAddr("2001:db8:ffff::241"), netip.MustParseAddr("2001:db8:ffff::242")},
	}
	s.World = harness.NewWorld(t, func(c *config.Config) {
		for i := range s.v4 {
			c.Network.Sources = append(c.Network.Sources, s.v4[i].String(), s.v6[i].String())
		}
	})
	v4, v6 := s.Net.GatewayAddrs()
	for i := range s.v4 {
		s.internet("ip", "route", "add", s.v4[i].String()+"/32", "via", v4.String(), "dev", "net0")
		s.internet("ip", "route", "add", s.v6[i].String()+"/128", "via", v6.String(), "dev", "net0")
	}
	return s
}

func (s *sourceWorld) internet(args ...string) {
	s.T.Helper()
	if out, err := s.Net.Internet().Run(s.T.Context(), args[0], args[1:]...); err != nil {
		s.T.Fatal(err, out)
	}
}

// host adds addresses to the host, or removes them.
func (s *sourceWorld) host(action string, list ...netip.Addr) {
	s.T.Helper()
	for _, a := range list {
		args := []string{"ip", "addr", action, netip.PrefixFrom(a, a.BitLen()).String(), "dev", "up0"}
		if a.Is6() && action == "add" {
			args = append(args, "nodad", "preferred_lft", "0")
		}
		if out, err := s.Net.Gateway().Run(s.T.Context(), args[0], args[1:]...); err != nil {
			s.T.Fatal(err, out)
		}
	}
}

// box creates a box that reaches one server by a spliced name, one where its requests are intercepted, and one by
// address only.
func (s *sourceWorld) box(sources ...netip.Addr) string {
	body := map[string]any{
		"network_policy": map[string]any{
			"mode": "custom", "allowed_domains": []string{"www.example.com", "api.example.com"},
			"allowed_cidrs": []string{s.V4("plain.example.com").String() + "/32", s.V6("plain.example.com").String() + "/128"},
		},
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}},
	}
	if len(sources) > 0 {
		body["source_addresses"] = sources
	}
	return s.Create(body)
}

// ways returns commands that reach the servers over one family.
func (s *sourceWorld) ways(family string, plain netip.Addr) []string {
	host := plain.String()
	if plain.Is6() {
		host = "[" + host + "]"
	}
	return []string{
		"curl -" + family + " -sS -f -m 20 -o /dev/null https://www.example.com/echo",
		"curl -" + family + " -sS -f -m 20 -o /dev/null https://api.example.com/echo",
		"curl -sS -m 20 -o /dev/null http://" + host + "/echo",
		`python3 -c 'import socket, sys
a = sys.argv[1]
s = socket.socket(socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20); s.connect((a, 4444)); s.send(b"x"); s.recv(9)' ` + plain.String(),
	}
}

// leavesFrom fails unless the box reaches the servers by every way over the families for which it has an address, with
// that source address only, and reaches no server over the other family.
func (s *sourceWorld) leavesFrom(box, when string, from policy.Source) {
	s.T.Helper()
	s.Net.Forget()
	for _, f := range []struct {
		name string
		at   netip.Addr
		open bool
	}{{"4", s.V4("plain.example.com"), from.V4.IsValid()}, {"6", s.V6("plain.example.com"), from.V6.IsValid()}} {
		for _, r := range s.ShEach(box, s.ways(f.name, f.at)...) {
			if (r.Code == 0) != f.open {
				s.T.Errorf("%s: %s: %d %s", when, r.Line, r.Code, r.Out)
			}
		}
	}
	for _, host := range []string{"www.example.com", "api.example.com", "plain.example.com"} {
		seen := s.Net.Received(host)
		for _, r := range seen {
			if a := r.Remote.Addr().Unmap(); a != from.V4 && a != from.V6 {
				s.T.Errorf("%s: %s saw the box at %v, want %v", when, host, a, from.Addrs())
			}
		}
		if len(seen) == 0 && len(from.Addrs()) > 0 {
			s.T.Errorf("%s: %s saw nothing", when, host)
		}
	}
}

// TestSourceAddresses: all traffic of a box has its own source addresses on the host, or is refused: spliced,
// intercepted, and forwarded by the kernel, over TCP and UDP, in both families; across changes, restarts, and the loss
// of an address. Other boxes use the host's addresses.
func TestSourceAddresses(t *testing.T) {
	t.Parallel()
	s := newSourceWorld(t)
	box, plain := s.box(s.v4[0], s.v6[0]), s.box()
	first, second := policy.Source{V4: s.v4[0], V6: s.v6[0]}, policy.Source{V4: s.v4[1], V6: s.v6[1]}
	var own policy.Source
	own.V4, own.V6 = s.Net.GatewayAddrs()

	s.leavesFrom(box, "while the host has none of its addresses", policy.Source{})
	s.DenialOf(box, policy.StageDNS, "www.example.com", name.ReasonSourceAddress)
	s.Denial(box, policy.StageKernel, s.V4("plain.example.com"), 4444, name.ReasonSourceAddress)

	s.host("add", s.v4[0], s.v4[1], s.v6[0], s.v6[1])
	s.Until("the addresses are noticed", func() bool {
		_, code := s.Sh(box, s.ways("6", s.V6("plain.example.com"))[3])
		return code == 0
	})
	s.leavesFrom(box, "with its addresses", first)
	s.leavesFrom(plain, "a box without", own)

	ended := make(chan int, 3)
	for _, url := range []string{"https://api.example.com/sse", "https://www.example.com/sse", "http://" + s.V4("plain.example.com").String() + "/sse"} {
		var out lab.SyncBuffer
		wait := s.Background(box, "curl -4 -sS -N "+url, &out)
		go func() {
			if code, err := wait(); err == nil && strings.HasPrefix(url, "https:") {
				ended <- code
			}
		}()
		if err := out.Await(t.Context(), "data"); err != nil {
			t.Fatal(url, err)
		}
	}
	s.Run(0, nil, "", "box", "source", box, second.V4.String(), second.V6.String())
	s.leavesFrom(box, "after a change", second)
	s.Until("what the proxy had open is cut", func() bool { return len(ended) == 2 })
	if n := s.Run(1, nil, "", "box", "source", box, own.V4.String()); n == "" {
		t.Error("an address that is not offered is refused without a word")
	}
	s.Run(1, nil, "", "box", "source", box, first.V4.String(), second.V4.String())
	s.leavesFrom(box, "after a change that was refused", second)

	only := policy.Source{V4: s.v4[0]}
	s.Run(0, nil, "", "box", "source", box, only.V4.String())
	s.leavesFrom(box, "with one family", only)
	if out, code := s.Sh(box, "getent ahostsv6 www.example.com | grep -i "+s.V6("www.example.com").String()); code == 0 {
		t.Errorf("it is told addresses that it cannot reach: %s", out)
	}
	s.Event(box, func(e audit.Event) bool {
		return e.Reason == name.ReasonSourceAddress && strings.Contains(e.Rule, "IPv6")
	})
	s.Kill()
	s.StartIfStopped()
	s.leavesFrom(box, "after a kill of the gateway", only)
	s.leavesFrom(plain, "a box without, after a kill of the gateway", own)

	s.host("del", s.v4[0])
	s.Until("the loss is noticed", func() bool {
		_, code := s.Sh(box, s.ways("4", s.V4("plain.example.com"))[3])
		return code != 0
	})
	s.leavesFrom(box, "with an address that the host has lost", policy.Source{})
	s.Run(0, nil, "", "box", "source", box, "--none")
	s.leavesFrom(box, "without source addresses", own)
}
