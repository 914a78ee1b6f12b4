package attack

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// attackerNets are the networks of the test internet's attacker.
var attackerNets = []string{"203.0.113.0/24", "2001:db8:bad::/48"}

// allowedCIDRs returns a custom policy of addresses.
func allowedCIDRs(list ...string) map[string]any {
	return map[string]any{"mode": "custom", "allowed_cidrs": list}
}

// Packets of unusual forms to an address that the policy allows do not arrive.
func TestAttackFragmentsOptionsAndTunnels(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	type shaped struct {
		name string
		make func(src, dst netip.Addr) []byte
		saw  string // "": no answer, because the kernel answers only packets it can verify
	}
	proto := func(p byte) func(src, dst netip.Addr) []byte {
		return func(src, dst netip.Addr) []byte { return harness.IPPacket(src, dst, p, make([]byte, 40)) }
	}
	fragment := func(f uint16) func(src, dst netip.Addr) []byte {
		return func(src, dst netip.Addr) []byte {
			return harness.IPv4Packet(src, dst, unix.IPPROTO_UDP, nil, f, harness.UDPPacket(netip.AddrPortFrom(src, 9), netip.AddrPortFrom(dst, 9), "12345678")[20:])
		}
	}
	options := func(o ...byte) func(src, dst netip.Addr) []byte {
		return func(src, dst netip.Addr) []byte {
			return harness.IPv4Packet(src, dst, unix.IPPROTO_UDP, o, 0, harness.UDPPacket(netip.AddrPortFrom(src, 9), netip.AddrPortFrom(dst, 9), "x")[20:])
		}
	}
	// extended inserts extension headers between an IPv6 header and a datagram.
	extended := func(first byte, headers ...[]byte) func(src, dst netip.Addr) []byte {
		return func(src, dst netip.Addr) []byte {
			var b []byte
			for _, h := range headers {
				b = append(b, h...)
			}
			return harness.IPPacket(src, dst, first, append(b, harness.UDPPacket(netip.AddrPortFrom(src, 9), netip.AddrPortFrom(dst, 9), "x")[40:]...))
		}
	}
	const udp = unix.IPPROTO_UDP
	for family, attacks := range [2][]shaped{{
		{"first fragment", fragment(0x2000), harness.SawProhibited},
		{"later fragment", fragment(0x0003), harness.SawNothing},
		{"last fragment", fragment(0x1fff), harness.SawNothing},
		{"record route", options(7, 7, 4, 0, 0, 0, 0, 0), harness.SawProhibited},
		{"loose source route", options(131, 7, 4, 198, 51, 100, 11, 0), harness.SawProhibited},
		{"router alert", options(148, 4, 0, 0), harness.SawProhibited},
		{"no-operation options", options(1, 1, 1, 0), harness.SawProhibited},
		{"GRE", proto(unix.IPPROTO_GRE), harness.SawProhibited},
		{"IPIP", proto(unix.IPPROTO_IPIP), harness.SawProhibited},
		{"IPv6 in IPv4", proto(unix.IPPROTO_IPV6), harness.SawProhibited},
		{"SCTP", proto(unix.IPPROTO_SCTP), harness.SawProhibited},
		{"DCCP", proto(unix.IPPROTO_DCCP), harness.SawProhibited},
		{"UDP-Lite", proto(unix.IPPROTO_UDPLITE), harness.SawProhibited},
		{"ESP", proto(unix.IPPROTO_ESP), harness.SawProhibited},
		{"AH", proto(unix.IPPROTO_AH), harness.SawProhibited},
		{"IGMP", proto(unix.IPPROTO_IGMP), harness.SawProhibited},
		{"L2TP", proto(115), harness.SawProhibited},
		{"raw", proto(unix.IPPROTO_RAW), harness.SawProhibited},
	}, {
		{"hop-by-hop options", extended(0, []byte{udp, 0, 1, 4, 0, 0, 0, 0}), harness.SawProhibited},
		{"destination options", extended(60, []byte{udp, 0, 1, 4, 0, 0, 0, 0}), harness.SawProhibited},
		{"hop-by-hop behind destination options", extended(60, []byte{0, 0, 1, 4, 0, 0, 0, 0}, []byte{udp, 0, 1, 4, 0, 0, 0, 0}), harness.SawProhibited},
		{"routing header", extended(43, []byte{udp, 0, 0, 0, 0, 0, 0, 0}), harness.SawProhibited},
		{"segment routing", extended(43, append([]byte{udp, 2, 4, 0, 0, 0, 0, 0}, make([]byte, 16)...)), harness.SawProhibited},
		{"first fragment", extended(44, []byte{udp, 0, 0, 1, 0, 0, 0, 7}), harness.SawProhibited},
		{"only fragment", extended(44, []byte{udp, 0, 0, 0, 0, 0, 0, 7}), harness.SawProhibited},
		{"later fragment", extended(44, []byte{udp, 0, 0, 8, 0, 0, 0, 7}), harness.SawNothing},
		{"AH", extended(51, append([]byte{udp, 4, 0, 0}, make([]byte, 20)...)), harness.SawProhibited},
		{"ESP", proto(unix.IPPROTO_ESP), harness.SawProhibited},
		{"no next header", proto(unix.IPPROTO_NONE), ""},
		{"mobility", proto(135), ""},
		{"host identity", proto(139), ""},
		{"GRE", proto(unix.IPPROTO_GRE), harness.SawProhibited},
		{"IPv4 in IPv6", proto(unix.IPPROTO_IPIP), ""},
		{"IPv6 in IPv6", proto(unix.IPPROTO_IPV6), ""},
		{"SCTP", proto(unix.IPPROTO_SCTP), harness.SawProhibited},
		{"UDP-Lite", proto(unix.IPPROTO_UDPLITE), harness.SawProhibited},
	}} {
		r := w.Raid(w.Create(map[string]any{"network_policy": allowedCIDRs(attackerNets...)}))
		for i, a := range attacks {
			to := harness.AttackerAt(byte(100 + i))[family]
			t.Run(to.String()+" "+a.name, func(t *testing.T) {
				w := w.On(t)
				r.Packet(a.make(r.Own(to), to))
				w.Denial(r.Box, policy.StageKernel, to, 0, name.ReasonProtocol)
				if got := r.RefusalOf(to, patience(a.saw)); a.saw != "" && got != a.saw {
					t.Errorf("the box saw %s, want %s", got, a.saw)
				}
				w.Untouched(to)
			})
		}
		// A plain datagram reaches the same addresses.
		to := harness.AttackerAt(200)[family]
		if got := r.Try("udp", netip.AddrPortFrom(to, 4444)); got != "success" {
			t.Errorf("a plain datagram to %v: %s", to, got)
		}
	}
}

// patience bounds the wait for an answer.
func patience(want string) time.Duration {
	if want == harness.SawReset || want == harness.SawProhibited {
		return 2 * time.Second
	}
	return 20 * time.Millisecond
}

// Packets with false lengths, or too short for their ports, are dropped.
func TestAttackMalformedPackets(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	// Everything is allowed except UDP 443 and hosts with header rules: unreadable packets must not bypass the port
	// rules.
	r := w.Raid(w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "allow-all"},
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}},
	}))
	for family, src := range [2]netip.Addr{r.V4, r.V6} {
		n := byte(20)
		next := func() netip.Addr { n++; return harness.AttackerAt(n)[family] }
		send := func(change func(b []byte) []byte, proto byte, payload []byte) netip.Addr {
			to := next()
			r.Packet(change(harness.IPPacket(src, to, proto, payload)))
			return to
		}
		same := func(b []byte) []byte { return b }
		ends := harness.IPPacket(src, next(), unix.IPPROTO_NONE, nil)
		head := len(ends)
		targets := []netip.Addr{
			send(same, unix.IPPROTO_TCP, []byte{0x9c, 0x40, 1}),
			send(same, unix.IPPROTO_TCP, []byte{0x9c, 0x40, 1, 187}),
			send(same, unix.IPPROTO_TCP, make([]byte, 19)),
			send(same, unix.IPPROTO_UDP, []byte{0x9c, 0x40, 1}),
			send(same, unix.IPPROTO_UDP, []byte{0x9c, 0x40, 1, 187}),
			send(same, unix.IPPROTO_UDP, []byte{0x9c, 0x40, 1, 187, 0xff, 0xff, 0, 0}),                                            // longer than the packet
			send(same, unix.IPPROTO_UDP, []byte{0x9c, 0x40, 1, 187, 0, 4, 0, 0}),                                                  // shorter than its header
			send(same, unix.IPPROTO_TCP, append([]byte{0x9c, 0x40, 1, 187, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 2}, make([]byte, 6)...)), // data offset beyond the end
			send(same, unix.IPPROTO_TCP, append([]byte{0x9c, 0x40, 1, 187, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x3f}, make([]byte, 6)...)),
			send(same, unix.IPPROTO_ICMP, []byte{8}),
			send(same, unix.IPPROTO_ICMPV6, []byte{128}),
			send(func(b []byte) []byte { return b[:head] }, unix.IPPROTO_TCP, make([]byte, 40)), // announces more than it contains
		}
		if family == 0 {
			targets = append(targets,
				send(func(b []byte) []byte { b[0] = 0x44; return b }, unix.IPPROTO_UDP, make([]byte, 20)), // a header of 16 bytes
				send(func(b []byte) []byte { b[10]++; return b }, unix.IPPROTO_UDP, make([]byte, 20)),
				send(func(b []byte) []byte { b[6] = 0x80; return b }, unix.IPPROTO_SCTP, make([]byte, 20))) // the evil bit
		} else {
			targets = append(targets,
				send(same, unix.IPPROTO_DSTOPTS, []byte{unix.IPPROTO_UDP, 200, 1, 4, 0, 0, 0, 0}), // longer than the packet
				send(same, unix.IPPROTO_ROUTING, []byte{unix.IPPROTO_UDP}),
				send(same, unix.IPPROTO_FRAGMENT, []byte{unix.IPPROTO_UDP, 0, 0}))
		}
		answered(r)
		w.Untouched(targets...)
	}
}

// answered returns when the gateway has processed everything that the raider sent before.
func answered(r *harness.Raider) {
	r.T.Helper()
	for _, server := range []string{"10.200.0.1", "fd42:b0c5::1"} {
		if got := r.Try("udp", netip.AddrPortFrom(netip.MustParseAddr(server), 53)); got != "success" && got != harness.SawNothing {
			r.T.Fatalf("DNS at %s: %s", server, got)
		}
	}
}

// A process in the box has no raw sockets, not even as root of its own user namespace, and ordinary sockets send only
// the plain protocols.
func TestAttackRawSocketsInTheBox(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	box := w.Create(map[string]any{"network_policy": allowedCIDRs(attackerNets...)})
	// Each must fail. An open netfilter socket is harmless, but creating a table with it must fail.
	const open = `import socket, struct, sys
def netfilter():
    s = socket.socket(16, 3, 12)
    s.bind((0, 0))
    s.send(bytes.fromhex("14000000 0010 0500 00000000 00000000 00000000"))
    d = s.recv(4096)
    if struct.unpack_from("H", d, 4)[0] == 2 and struct.unpack_from("i", d, 16)[0] != 0: raise OSError("refused")
tries = {name: (lambda a=a: socket.socket(*a)) for name, a in {
    "AF_PACKET": (17, 3, 768), "AF_PACKET datagrams": (17, 2, 768), "raw ICMP": (2, 3, 1), "raw TCP": (2, 3, 6), "raw": (2, 3, 255),
    "raw ICMPv6": (10, 3, 58), "raw IPv6": (10, 3, 255)}.items()}
tries["netfilter"] = netfilter
for name, t in tries.items():
    try: t(); print("allowed:", name)
    except OSError: print("refused:", name)`
	w.MustSh(box, "cat > open.py <<'EOF'\n"+open+"\nEOF")
	for _, as := range []string{"", "unshare -Ur "} {
		out, _ := w.Sh(box, as+"python3 open.py")
		if strings.Count(out, "refused:") != 8 && !strings.Contains(out, "unshare failed") || strings.Contains(out, "allowed:") {
			t.Errorf("%q: %s", as, out)
		}
	}
	// Sockets available to all: their packets are refused as a protocol that boxes may not use.
	to := [][2]netip.Addr{harness.AttackerAt(61), harness.AttackerAt(62), harness.AttackerAt(63), harness.AttackerAt(64), harness.AttackerAt(65)}
	const send = `python3 -c 'import socket,sys
f, t, p = map(int, sys.argv[1:4])
try:
    s = socket.socket(f, t, p)
    s.settimeout(0.2)
    if len(sys.argv) > 5: s.setsockopt(*[int(a) for a in sys.argv[5:7]], bytes.fromhex(sys.argv[7]))
    s.connect((sys.argv[4], 9)); s.send(b"x" * (4000 if p == 17 and len(sys.argv) == 5 else 9)); s.recv(9)
except OSError as e: print(e)' `
	var lines []string
	var sent []netip.Addr
	for family, af := range [2]string{"2", "10"} {
		for i, socket := range []string{" 2 136 ", " 1 132 ", " 6 33 ", " 2 17 "} {
			lines, sent = append(lines, send+af+socket+to[i][family].String()), append(sent, to[i][family])
		}
	}
	for i, ran := range w.ShEach(box, lines...) {
		if strings.Contains(ran.Out, "not supported") {
			continue // not supported by this kernel
		}
		w.Denial(box, policy.StageKernel, sent[i], 0, name.ReasonProtocol)
		w.Untouched(sent[i])
	}
	w.MustSh(box, send+"2 2 17 "+to[4][0].String()+" 0 4 0707040000000000") // IP_OPTIONS: record route
	w.Denial(box, policy.StageKernel, to[4][0], 0, name.ReasonProtocol)
	w.Untouched(to[4][0])
}

// Only ICMP echo passes, to allowed addresses only, and at a limited rate.
func TestAttackICMPTunnel(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	www := [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	r := w.Raid(w.Create(map[string]any{"network_policy": allowedCIDRs(www[0].String()+"/32", www[1].String()+"/128")}))
	named := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("*.example.com", "*.example.net")}))
	echo := append([]byte{0, 7, 0, 1}, make([]byte, 1200)...)
	for family := range 2 {
		to, allowed := harness.AttackerAt(31)[family], www[family]
		r.Packet(harness.ICMPPacket(r.Own(to), to, 8, 128, 0, echo))
		w.Denial(r.Box, policy.StageKernel, to, 0, name.ReasonNotAllowed)
		if got := r.RefusalOf(to, patience(harness.SawProhibited)); got != harness.SawProhibited {
			t.Errorf("the box saw %s", got)
		}
		// An allowed name allows no ICMP, which is decided by address.
		named.Packet(harness.ICMPPacket(named.Own(allowed), allowed, 8, 128, 0, echo))
		w.Denial(named.Box, policy.StageKernel, allowed, 0, name.ReasonNotAllowed)
		w.Untouched(to, allowed)
		// Messages other than echo could carry data as well.
		for _, kind := range [][2]byte{{13, 139}, {15, 130}, {17, 144}} {
			r.Packet(harness.ICMPPacket(r.Own(allowed), allowed, kind[0], kind[1], 0, echo))
		}
		for _, kind := range [][2]byte{{0, 129}, {3, 1}, {5, 137}, {9, 134}, {10, 133}, {12, 4}, {14, 136}, {40, 200}} {
			r.Packet(harness.ICMPPacket(r.Own(allowed), allowed, kind[0], kind[1], 0, echo))
		}
		answered(r)
		w.Untouched(allowed)
		w.Denial(r.Box, policy.StageKernel, allowed, 0, name.ReasonProtocol)
	}
	for i := range 200 {
		a := www[i%2]
		r.Packet(harness.ICMPPacket(r.Own(a), a, 8, 128, 0, echo))
	}
	answered(r)
	w.AwaitCounted()
	var got [2]int
	for family, a := range www {
		for _, p := range w.Net.Packets(a.String()) {
			got[family] += p.Count
		}
	}
	if got[0] == 0 || got[1] == 0 || got[0]+got[1] > 30 {
		t.Errorf("of 200 echo requests at once %v reached the allowed addresses", got)
	}
}

// A policy of names allows no UDP to any address: neither QUIC nor DNS over QUIC.
func TestAttackUDP(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	named := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("*")}))
	closed := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	host := [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	w.MustSh(named.Box, "getent ahosts www.example.com") // a grant has no effect here
	for _, c := range []struct {
		r      *harness.Raider
		port   uint16
		reason name.Reason
	}{
		{named, 443, name.ReasonProtocol}, {named, 853, name.ReasonNotAllowed}, {named, 123, name.ReasonNotAllowed},
		{named, 4444, name.ReasonNotAllowed}, {closed, 443, name.ReasonDenyAll}, {closed, 853, name.ReasonDenyAll},
		{closed, 4444, name.ReasonDenyAll},
	} {
		for _, a := range host {
			if got := c.r.Try("udp", netip.AddrPortFrom(a, c.port)); got != harness.SawProhibited {
				t.Errorf("UDP %d to %v: the box saw %s", c.port, a, got)
			}
			w.Denial(c.r.Box, policy.StageKernel, a, c.port, c.reason)
		}
	}
	w.Untouched(host[:]...)
	// QUIC is refused to an allowed address if a header rule could apply to it.
	ruled := w.Raid(w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "allow-all"},
		"attach_headers": map[string]any{
			"api.example.com":      map[string]string{"X-Key": harness.TestSecret},
			"api.example.com:8443": map[string]string{"X-Key": harness.TestSecret},
		},
	}))
	for _, a := range host {
		for _, port := range []uint16{443, 8443, 853} { // and DNS over QUIC, as over TLS
			if got := ruled.Try("udp", netip.AddrPortFrom(a, port)); got != harness.SawProhibited {
				t.Errorf("QUIC to %v port %d: the box saw %s", a, port, got)
			}
			w.Denial(ruled.Box, policy.StageKernel, a, port, name.ReasonProtocol)
		}
	}
	w.Untouched(host[:]...)
}
