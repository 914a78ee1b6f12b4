package attack

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// explicitProxies are the addresses for software that uses HTTPS_PROXY.
var explicitProxies = []netip.AddrPort{netip.MustParseAddrPort("10.200.0.1:3128"), netip.MustParseAddrPort("[fd42:b0c5::1]:3128")}

// viaProxy sends the head of a request to the explicit proxy and returns the status and text of the answer.
func viaProxy(r *harness.Raider, family int, head string) (int, string) {
	r.T.Helper()
	c := r.MustDial("tcp", explicitProxies[family])
	defer c.Close()
	resp, text := sendRequest(r, c, bufio.NewReader(c), head+"\r\n\r\n")
	if resp == nil {
		return 0, text
	}
	return resp.StatusCode, text
}

// A connection without a name cannot be decided by name: it is refused, both when only listed names are allowed and
// when some are denied.
func TestAttackNoName(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	evil := [2]netip.Addr{w.V4("evil.example.net"), w.V6("evil.example.net")}
	for label, p := range map[string]map[string]any{
		"listed names": harness.Custom("api.example.com", "*.example.com"),
		"denied names": {"mode": "custom", "denied_domains": []string{"evil.example.net"}},
	} {
		t.Run(label, func(t *testing.T) {
			w := w.On(t)
			r := w.Raid(w.Create(map[string]any{"network_policy": p}))
			for family, a := range evil {
				if _, err := claim(r, netip.AddrPortFrom(a, 443), ""); err == nil || !strings.Contains(err.Error(), "access denied") {
					t.Errorf("no SNI to %v: %v", a, err)
				}
				w.Denial(r.Box, policy.StageConn, a, 443, name.ReasonNoName)
				host := a.String()
				if family == 1 {
					host = "[" + host + "]"
				}
				if got := plainAnswer(r, netip.AddrPortFrom(a, 80), host, "/address"); got != "403" {
					t.Errorf("the address as Host, to %v: the box saw %s", a, got)
				}
				w.Event(r.Box, func(e audit.Event) bool {
					return e.Stage == policy.StageHTTP && e.Addr == a && e.Verdict == policy.Deny
				})
				if got := plainAnswer(r, netip.AddrPortFrom(a, 80), "evil.example.net", "/name"); got != "403" {
					t.Errorf("the name itself: the box saw %s", got)
				}
				if status, text := viaProxy(r, family, "CONNECT "+host+":443 HTTP/1.1\r\nHost: "+host+":443"); status != 403 {
					t.Errorf("CONNECT to the address: %d %s", status, text)
				}
				if status, text := viaProxy(r, family, "GET http://"+host+"/address HTTP/1.1\r\nHost: "+host); status != 403 {
					t.Errorf("explicit proxy, the address: %d %s", status, text)
				}
			}
			w.Untouched(evil[:]...)
		})
	}
}

// numbers are notations of 169.254.169.254 and 127.0.0.1 that some programs accept.
var numbers = []string{
	"2852039166", "0xa9fea9fe", "0xA9FEA9FE", "025177524776", "0251.0376.0251.0376", "0xa9.0xfe.0xa9.0xfe", "169.254.43518", "169.16689662",
	"169.254.169.254.", "0251.254.169.0xfe", "169.254.169.0376", "00169.254.169.254", "2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "127.1", "127.0.1", "0x7f.1",
	"127.0.0.1.", "0", "0.0", "0x0", "４５.169.254.169.254", "①②⑦.0.0.1", "169。254。169。254",
	"[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[::ffff:127.0.0.1]", "[::1]", "[::]", "[0:0:0:0:0:ffff:7f00:1]",
	"[fe80::1%25eth0]", "[fe80::1%eth0]", "[::169.254.169.254]", "169.254.169.254", "127.0.0.1", "0.0.0.0",
}

// The metadata service and the host under other spellings, with the most permissive policy.
func TestAttackAddressesInDisguise(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	r := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}}))
	named := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("*")}))
	www := [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	for i, host := range numbers {
		for _, from := range []*harness.Raider{r, named} {
			for _, head := range []string{"GET http://" + host + "/disguise HTTP/1.1\r\nHost: " + host, "CONNECT " + host + ":80 HTTP/1.1\r\nHost: " + host + ":80",
				"CONNECT " + host + ":8600 HTTP/1.1\r\nHost: " + host + ":8600"} {
				if status, text := viaProxy(from, i%2, head); status/100 != 4 {
					t.Errorf("%q: the box saw %d %s", head, status, text)
				}
			}
		}
		if got := plainAnswer(named, netip.AddrPortFrom(www[i%2], 80), host, "/disguise"); got != "400" && got != "403" && got != "421" {
			t.Errorf("Host %s: the box saw %s", host, got)
		}
		if strings.HasPrefix(host, "[") {
			continue
		}
		// DNS returns no address for such a name, other than the sink's.
		for _, from := range []*harness.Raider{r, named} {
			m := ask(from, "udp", gatewayDNS, host, mdns.TypeA)
			if a := addressesIn(m); len(a) > 0 && !slices.Contains(sinks, a[0]) {
				t.Errorf("%s resolved to %v", host, a)
			}
		}
	}
	// DNS returns the address under a different notation, for an allowed name.
	for i, s := range []string{"169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "::a9fe:a9fe", "127.0.0.1", "0.0.0.0", "::"} {
		refusedName(named, i%2, nameFor(w, netip.MustParseAddr(s), fmt.Sprintf("disguise-%d.example.com", i)))
	}
	// curl in the box reads numbers as addresses; the kernel sees the real address.
	var lines []string
	for _, host := range []string{"2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.16689662"} {
		lines = append(lines, "curl -sS -m 60 http://"+host+"/latest/meta-data/")
	}
	for _, ran := range w.ShEach(r.Box, lines...) {
		if ran.Code != 7 {
			t.Errorf("%s: exit %d: %s", ran.Line, ran.Code, ran.Out)
		}
	}
	w.Denial(r.Box, policy.StageKernel, netip.MustParseAddr("169.254.169.254"), 80, name.ReasonProtectedRange)
	w.Untouched(netip.MustParseAddr("169.254.169.254"))
	if seen := w.Net.Received("", testnet.Path("/disguise")); len(seen) != 0 {
		t.Errorf("%d requests arrived, the first: %+v", len(seen), seen[0])
	}
}

// specialAddresses are never reachable for boxes, whatever a policy lists.
var specialAddresses = []string{
	"0.0.0.0", "0.1.2.3", "10.0.0.5", "100.64.0.1", "127.0.0.1", "127.255.0.9", "168.63.129.16", "169.254.169.254", "169.254.0.1", "172.16.0.1",
	"192.0.0.1", "192.0.0.170", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
	"::", "::1", "::a9fe:a9fe", "::ffff:169.254.169.254", "::ffff:203.0.113.5", "::ffff:0:169.254.169.254", "64:ff9b::169.254.169.254", "64:ff9b::10.0.0.5", "64:ff9b::127.0.0.1",
	"64:ff9b:1::203.0.113.5", "100::1", "2001::1", "2001:0:cb00:7105::1", "2001:10::1", "2002:a9fe:a9fe::1", "2002:cb00:7105::1", "3fff::1", "5f00::1",
	"fc00::1", "fd00::5", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "ff0e::1",
}

// Every special address, by the kernel path and by the explicit proxy, with everything else allowed.
func TestAttackSpecialAddresses(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	all := []map[string]any{allowedCIDRs("0.0.0.0/0", "::/0"), {"mode": "allow-all"}, harness.Custom("*")}
	var targets []netip.Addr
	for _, p := range all {
		r := w.Raid(w.Create(map[string]any{"network_policy": p}))
		for i, s := range specialAddresses {
			a := netip.MustParseAddr(s)
			targets = append(targets, a)
			host := s
			if a.Is6() {
				host = "[" + s + "]"
			}
			// An IPv4-mapped address means the IPv4 address, which may be allowed, but not in a packet.
			if s == "::ffff:203.0.113.5" {
				r.Packet(harness.UDPPacket(netip.AddrPortFrom(r.V6, 9), netip.AddrPortFrom(a, 4444), "mapped"))
				continue
			}
			if status, text := viaProxy(r, i%2, "CONNECT "+host+":80 HTTP/1.1\r\nHost: "+host+":80"); status != 403 {
				t.Errorf("%v: CONNECT %s: the box saw %d %s", p, host, status, text)
			}
			// Under an allowed name whose owner points it to the address: both DNS and the proxy refuse.
			if p["mode"] == "custom" && p["allowed_domains"] != nil {
				refusedName(r, i%2, nameFor(w, a, fmt.Sprintf("special-%d.example.com", i)))
			}
			// As packets: the box's own routes would keep some of them in the box.
			r.Packet(harness.UDPPacket(netip.AddrPortFrom(r.Own(a), 9), netip.AddrPortFrom(a, 4444), "special"))
			r.Packet(harness.TCPPacket(netip.AddrPortFrom(r.Own(a), 40000), netip.AddrPortFrom(a, 80), 2, ""))
			r.Packet(harness.ICMPPacket(r.Own(a), a, 8, 128, 0, make([]byte, 8)))
		}
		answered(r)
		for _, e := range w.Events(r.Box) {
			if e.Verdict == policy.Allow && e.Stage != policy.StageDNS {
				t.Errorf("decision: %s", audit.Line(e))
			}
		}
		w.Event(r.Box, func(e audit.Event) bool {
			return e.Stage == policy.StageKernel && e.Reason == name.ReasonProtectedRange
		})
		w.Event(r.Box, func(e audit.Event) bool {
			return e.Stage == policy.StageConn && e.Reason == name.ReasonProtectedRange
		})
	}
	w.Untouched(targets...)
}

// The ports of the host: on each of its addresses, by every way, and under a name that resolves to it.
func TestAttackHostPorts(t *testing.T) {
	t.Parallel()
	// Only the rules keep the box from admin and metrics here, because they listen on every address.
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Admin.Listen, c.Metrics.Listen, c.Ingress.HTTP = "[::]:8600", "[::]:9600", "[::]:80"
	})
	victim := w.Raid(w.Create(map[string]any{}))
	open := [2]*harness.Raider{w.Raid(w.Create(map[string]any{"network_policy": allowedCIDRs("0.0.0.0/0", "::/0")})), w.Raid(w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}}))}
	named := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("*")}))
	uplink4, uplink6 := w.Net.GatewayAddrs()
	var ln [2]net.Listener
	err := victim.Inside(func() (err error) {
		for i, a := range []netip.Addr{victim.V4, victim.V6} {
			if ln[i], err = net.Listen("tcp", netip.AddrPortFrom(a, 3000).String()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan string, 10)
	for _, l := range ln {
		t.Cleanup(func() { l.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				reached <- c.RemoteAddr().String()
			}
		}()
	}
	for _, target := range []struct {
		addr   netip.Addr
		reason name.Reason
	}{
		{uplink4, name.ReasonHostPort}, {uplink6, name.ReasonHostPort},
		{netip.MustParseAddr("10.200.0.1"), name.ReasonHostPort}, {netip.MustParseAddr("fd42:b0c5::1"), name.ReasonHostPort},
		{victim.V4, name.ReasonProtectedRange}, {victim.V6, name.ReasonProtectedRange},
		{netip.MustParseAddr("10.200.0.0"), name.ReasonProtectedRange}, {netip.MustParseAddr("fd42:b0c5::"), name.ReasonProtectedRange},
		{netip.MustParseAddr("10.200.255.255"), name.ReasonProtectedRange}, {netip.MustParseAddr("10.200.9.9"), name.ReasonProtectedRange},
		{netip.MustParseAddr("fd42:b0c5::9:9"), name.ReasonProtectedRange},
	} {
		family := 0
		if target.addr.Is6() {
			family = 1
		}
		r := open[family]
		for _, port := range []uint16{8600, 9600, 3000} {
			to := netip.AddrPortFrom(target.addr, port)
			if got := r.Try("tcp", to); got != harness.SawReset {
				t.Errorf("TCP to %v: the box saw %s", to, got)
			}
			if status, text := viaProxy(r, family, "CONNECT "+to.String()+" HTTP/1.1\r\nHost: "+to.String()); status != 403 {
				t.Errorf("CONNECT %v: the box saw %d %s", to, status, text)
			}
		}
		if got := r.Try("udp", netip.AddrPortFrom(target.addr, 4444)); got != harness.SawProhibited {
			t.Errorf("UDP to %v: the box saw %s", target.addr, got)
		}
		e := w.Event(r.Box, func(e audit.Event) bool { return e.Stage == policy.StageKernel && e.Addr == target.addr })
		if e.Verdict != policy.Deny || e.Reason != target.reason && e.Reason != name.ReasonHostPort {
			t.Errorf("decision: %s", audit.Line(e))
		}
		// The same under a name that the policy allows.
		name := fmt.Sprintf("inside-%x.example.com", target.addr.AsSlice())
		record := fmt.Sprintf("%s. 60 IN A %v", name, target.addr)
		if target.addr.Is6() {
			record = fmt.Sprintf("%s. 60 IN AAAA %v", name, target.addr)
		}
		if err := w.Net.SetRecords(name, record); err != nil {
			t.Fatal(err)
		}
		www := netip.AddrPortFrom(w.V4("www.example.com"), 80)
		if got := plainAnswer(named, www, name, "/inside"); got != "403" {
			t.Errorf("Host %s: the box saw %s", name, got)
		}
		for _, port := range []string{"8600", "9600", "3000"} {
			if status, text := viaProxy(named, 0, "GET http://"+name+":"+port+"/inside HTTP/1.1\r\nHost: "+name+":"+port); status != 403 {
				t.Errorf("explicit proxy, %s:%s: the box saw %d %s", name, port, status, text)
			}
		}
		if _, err := claim(named, netip.AddrPortFrom(www.Addr(), 443), name); err == nil || !strings.Contains(err.Error(), "access denied") {
			t.Errorf("SNI %s: %v", name, err)
		}
		m := ask(r, "udp", gatewayDNS, name, mdns.TypeA)
		if target.addr.Is6() {
			m = ask(r, "udp", gatewayDNS, name, mdns.TypeAAAA)
		}
		if a := addressesIn(m); len(a) != 0 || !isBlocked(m) {
			t.Errorf("%s resolved to %v", name, a)
		}
	}
	select {
	case from := <-reached:
		t.Errorf("the other box was reached from %s", from)
	default:
	}
	for _, e := range append(w.Events(open[0].Box), append(w.Events(open[1].Box), w.Events(named.Box)...)...) {
		if e.Verdict == policy.Allow && e.Stage != policy.StageDNS {
			t.Errorf("decision: %s", audit.Line(e))
		}
	}
}

// The host gets a new address while boxes run: it belonged to another host before, and is out of reach from now on.
func TestAttackNewHostAddress(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	fresh := harness.AttackerAt(150)
	open := w.Raid(w.Create(map[string]any{"network_policy": allowedCIDRs(attackerNets...)}))
	named := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("fresh.example.com")}))
	www := [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	for family, a := range fresh {
		// By its name, at another host's address: the proxy resolves the name itself.
		if err := w.Net.AddHost("fresh.example.com", a.String()); err != nil {
			t.Fatal(err)
		}
		w.Net.SetTTL("fresh.example.com", 0)
		w.Until("the proxy has the address", func() bool {
			plainAnswer(named, netip.AddrPortFrom(www[family], 80), "fresh.example.com", "/before")
			return len(w.Net.Received(a.String(), testnet.Path("/before"))) > 0
		})
		if got := plainAnswer(named, netip.AddrPortFrom(www[family], 80), "fresh.example.com", "/before"); got != "200" {
			t.Errorf("while it is another's, the box saw %s", got)
		}
		held := open.MustDial("tcp", netip.AddrPortFrom(a, 4444))
		args := []string{"addr", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "lo"}
		if a.Is6() {
			args = append(args, "nodad")
		}
		if out, err := w.Net.Gateway().Run(t.Context(), "ip", args...); err != nil {
			t.Fatal(err, out)
		}
		ln, err := w.Net.Gateway().Listen("tcp", netip.AddrPortFrom(a, 3000).String())
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		if got := open.Try("tcp", netip.AddrPortFrom(a, 3000)); got != harness.SawReset {
			t.Errorf("TCP to %v: the box saw %s", a, got)
		}
		w.Denial(open.Box, policy.StageKernel, a, 3000, name.ReasonHostPort)
		w.Until("the name is refused", func() bool {
			return plainAnswer(named, netip.AddrPortFrom(www[family], 80), "fresh.example.com", "/after") == "403"
		})
		for i := range 2 {
			host := netip.AddrPortFrom(a, 3000).String()
			if status, text := viaProxy(open, i, "CONNECT "+host+" HTTP/1.1\r\nHost: "+host); status != 403 {
				t.Errorf("CONNECT %s: the box saw %d %s", host, status, text)
			}
		}
		if _, err := held.Write([]byte("x")); err == nil {
			_, err = held.Read(make([]byte, 1))
			if got := harness.Saw(err); got != harness.SawReset {
				t.Errorf("the connection that was open to %v: %s", a, got)
			}
		}
	}
	w.DenialOf(named.Box, policy.StageHTTP, "fresh.example.com", name.ReasonProtectedRange)
}

// An address of one family is listed; the same host's address in the other family is not.
func TestAttackOtherFamily(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	host := [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	for family, cidr := range []string{host[0].String() + "/32", host[1].String() + "/128"} {
		r := w.Raid(w.Create(map[string]any{"network_policy": allowedCIDRs(cidr)}))
		listed, other := host[family], host[1-family]
		if got := r.Try("tcp", netip.AddrPortFrom(listed, 4444)); got != "success" {
			t.Errorf("%v is listed: the box saw %s", listed, got)
		}
		w.Net.Forget()
		if got := r.Try("tcp", netip.AddrPortFrom(other, 4444)); got != harness.SawReset {
			t.Errorf("TCP to %v: the box saw %s", other, got)
		}
		w.Denial(r.Box, policy.StageKernel, other, 4444, name.ReasonNotAllowed)
		if got := r.Try("udp", netip.AddrPortFrom(other, 123)); got != harness.SawProhibited {
			t.Errorf("UDP to %v: the box saw %s", other, got)
		}
		w.Denial(r.Box, policy.StageKernel, other, 123, name.ReasonNotAllowed)
		// By name too: DNS returns only addresses of the listed family, and the proxy dials none of the other.
		m := ask(r, "udp", gatewayDNS, "www.example.com", []uint16{mdns.TypeAAAA, mdns.TypeA}[family])
		for _, a := range addressesIn(m) {
			if !slices.Contains(sinks, a) {
				t.Errorf("www.example.com resolved to %v", a)
			}
		}
		if got := plainAnswer(r, netip.AddrPortFrom(other, 80), "www.example.com", "/family"); got == "200" {
			t.Errorf("Host at %v: the box saw %s", other, got)
		}
		w.NothingReached(other.String())
	}
}

// Deny wins over allow, whichever is wider, and an operator's exemption does not change that.
func TestAttackDenyWins(t *testing.T) {
	t.Parallel()
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Network.ProtectedExempt = append(c.Network.ProtectedExempt, "10.9.0.0/16", "fd09::/64")
	})
	for name, addrs := range map[string][]string{
		"deep.sub.example.com": {"198.51.100.92", "2001:db8:1::92"}, "sub.example.com": {"198.51.100.93", "2001:db8:1::93"},
		"exempt.example.com": {"10.9.0.5", "fd09::5"}, "exempt-denied.example.com": {"10.9.1.5", "fd09::1:5"},
	} {
		if err := w.Net.AddHost(name, addrs...); err != nil {
			t.Fatal(err)
		}
	}
	r := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{
		"mode": "custom", "allowed_domains": []string{"*.example.com", "deep.sub.example.com"}, "denied_domains": []string{"*.sub.example.com"},
		"allowed_cidrs": []string{"203.0.113.0/24", "2001:db8:bad::/48", "203.0.113.64/28", "10.9.0.0/16", "fd09::/64"},
		"denied_cidrs":  []string{"203.0.113.64/26", "2001:db8:bad::40/122", "203.0.113.5/32", "2001:db8:bad::5/128", "10.9.1.0/24", "fd09::1:0/112"},
	}}))
	plain := [2]netip.Addr{w.V4("plain.example.com"), w.V6("plain.example.com")}
	for family := range 2 {
		at := func(name string) netip.Addr { return []netip.Addr{w.V4(name), w.V6(name)}[family] }
		// By address: inside a wider allowed range, around a narrower one, and a single host.
		for _, n := range []byte{64, 70, 127, 5} {
			a := harness.AttackerAt(n)[family]
			if got := r.Try("tcp", netip.AddrPortFrom(a, 4444)); got != harness.SawReset {
				t.Errorf("TCP to %v: the box saw %s", a, got)
			}
			w.Denial(r.Box, policy.StageKernel, a, 4444, name.ReasonDeniedCIDR)
			w.Untouched(a)
		}
		for _, a := range []netip.Addr{harness.AttackerAt(63)[family], harness.AttackerAt(128)[family], harness.AttackerAt(4)[family], harness.AttackerAt(6)[family], at("exempt.example.com")} {
			if got := r.Try("tcp", netip.AddrPortFrom(a, 4444)); got != "success" {
				t.Errorf("TCP to %v, just outside: the box saw %s", a, got)
			}
		}
		if a := at("exempt-denied.example.com"); r.Try("tcp", netip.AddrPortFrom(a, 4444)) != harness.SawReset {
			t.Errorf("%v is denied, although exempt", a)
		} else {
			w.Denial(r.Box, policy.StageKernel, a, 4444, name.ReasonDeniedCIDR)
			w.Untouched(a)
		}
		if got := plainAnswer(r, netip.AddrPortFrom(plain[family], 80), "exempt-denied.example.com", "/deny"); got != "403" {
			t.Errorf("a name with a denied address: the box saw %s", got)
		}
		// By name: below a denied name, at any address.
		for _, to := range []netip.Addr{at("deep.sub.example.com"), plain[family], harness.AttackerAt(63)[family], sinks[family]} {
			if _, err := claim(r, netip.AddrPortFrom(to, 443), "deep.sub.example.com"); err == nil || !strings.Contains(err.Error(), "access denied") {
				t.Errorf("SNI of a denied name to %v: %v", to, err)
			}
			if got := plainAnswer(r, netip.AddrPortFrom(to, 80), "deep.sub.example.com", "/deny"); got != "403" {
				t.Errorf("Host of a denied name to %v: the box saw %s", to, got)
			}
		}
		if got := plainAnswer(r, netip.AddrPortFrom(plain[family], 80), "sub.example.com", fmt.Sprintf("/not-below%d", family)); got != "200" {
			t.Errorf("the name itself is not below itself: the box saw %s", got)
		}
	}
	ask(r, "udp", gatewayDNS, "deep.sub.example.com", mdns.TypeA)
	w.DenialOf(r.Box, policy.StageDNS, "deep.sub.example.com", name.ReasonDeniedDomain)
}
