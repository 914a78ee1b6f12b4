package lifecycle

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/e2e/harness"
)

// guestStack is a sandbox with its own network stack, like gVisor: it has removed the addresses from the interface and
// sends whole frames with them itself.
type guestStack struct {
	*harness.Raider
	sandbox *harness.ForeignBox
	port    uint16 // source port of the next connection
}

// takeOver gives an attached sandbox its own network stack.
func takeOver(w *harness.World, box string, f *harness.ForeignBox) *guestStack {
	w.T.Helper()
	w.Adopt(box, f)
	g := &guestStack{Raider: w.Raid(box), sandbox: f, port: 40000}
	if out, code := f.Sh("ip -4 addr flush dev eth0 && ip -6 addr flush dev eth0"); code != 0 {
		w.T.Fatal(out)
	}
	return g
}

// get makes an HTTP request and returns the first part of the answer, or the state of the connection.
func (g *guestStack) get(to netip.AddrPort, path string) string {
	g.T.Helper()
	g.port++
	from := netip.AddrPortFrom(g.V4, g.port)
	if to.Addr().Is6() {
		from = netip.AddrPortFrom(g.V6, g.port)
	}
	const syn, psh, ack = 2, 8, 16
	seq := uint32(1000)
	g.segment(from, to, seq, 0, syn, "")
	seq++
	deadline := time.Now().Add(5 * time.Second)
	flags, theirs, _ := g.receive(from, to, deadline, func(flags byte, _ string) bool { return flags&(syn|4) != 0 })
	if flags != syn|ack {
		return outcomeOf(flags)
	}
	g.segment(from, to, seq, theirs+1, ack, "")
	g.segment(from, to, seq, theirs+1, ack|psh, "GET "+path+" HTTP/1.1\r\nHost: plain.example.com\r\nConnection: close\r\n\r\n")
	flags, _, text := g.receive(from, to, deadline, func(flags byte, text string) bool { return flags&4 != 0 || text != "" })
	if text == "" {
		return outcomeOf(flags)
	}
	return text
}

func outcomeOf(flags byte) string {
	if flags&4 != 0 {
		return harness.SawReset
	}
	return harness.SawNothing
}

// segment sends a TCP segment.
func (g *guestStack) segment(from, to netip.AddrPort, seq, ack uint32, flags byte, text string) {
	b := harness.TCPSegment(from, to, flags, text)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[16], b[17] = 0, 0
	binary.BigEndian.PutUint16(b[16:], harness.SumWith(from.Addr(), to.Addr(), unix.IPPROTO_TCP, b))
	g.Packet(harness.IPPacket(from.Addr(), to.Addr(), unix.IPPROTO_TCP, b))
}

// receive waits for a segment of a connection that satisfies wanted. It returns flags 0 if none arrives.
func (g *guestStack) receive(from, to netip.AddrPort, deadline time.Time, wanted func(flags byte, text string) bool) (byte, uint32, string) {
	g.T.Helper()
	buf := make([]byte, 4096)
	for time.Now().Before(deadline) {
		tv := unix.NsecToTimeval((100 * time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(g.FD, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			g.T.Fatal(err)
		}
		n, sender, err := unix.Recvfrom(g.FD, buf, 0)
		if ll, ok := sender.(*unix.SockaddrLinklayer); err != nil || !ok || ll.Pkttype == unix.PACKET_OUTGOING || n < 14 {
			continue
		}
		tcp := tcpOf(buf[14:n])
		if len(tcp) < 20 || binary.BigEndian.Uint16(tcp) != to.Port() || binary.BigEndian.Uint16(tcp[2:]) != from.Port() {
			continue
		}
		text := ""
		if head := int(tcp[12]>>4) * 4; head <= len(tcp) {
			text = string(tcp[head:])
		}
		if wanted(tcp[13], text) {
			return tcp[13], binary.BigEndian.Uint32(tcp[4:]), text
		}
	}
	return 0, 0, ""
}

// tcpOf returns the TCP segment in an IP packet, or nil.
func tcpOf(b []byte) []byte {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_TCP:
		end, head := int(binary.BigEndian.Uint16(b[2:])), int(b[0]&15)*4 // short frames are padded
		if head <= end && end <= len(b) {
			return b[head:end]
		}
	case len(b) >= 40 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		if end := 40 + int(binary.BigEndian.Uint16(b[4:])); end <= len(b) {
			return b[40:end]
		}
	}
	return nil
}

// assertWorks fails the test unless the sandbox reaches the internet over both families, by its own stack.
func (g *guestStack) assertWorks(when string) {
	g.T.Helper()
	for _, a := range []netip.Addr{g.World.V4("plain.example.com"), g.World.V6("plain.example.com")} {
		if got := g.get(netip.AddrPortFrom(a, 80), "/seen"); !strings.HasPrefix(got, "HTTP/1.1 200") {
			g.T.Errorf("%s, to %v: %.200q", when, a, got)
		}
	}
	if out, _ := g.sandbox.Sh("ip -o addr show dev eth0"); strings.Contains(out, g.V4.String()) || strings.Contains(out, g.V6.String()) {
		g.T.Errorf("%s: addresses were put back: %s", when, out)
	}
}

// A sandbox with its own network stack, attached as such, keeps its network when the gateway restarts and when the
// kernel rules are rewritten.
func TestAttachedGuestKeepsItsOwnNetworkStack(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	f := harness.NewForeignBox(t)
	out, code := w.GatewayCommand("box", "attach", "--json", "--pid", strconv.Itoa(f.PID), "--name", "guest", "--stack", "guest", "--policy", "allow-all")
	var box struct {
		ID       string
		Attached api.Attached
	}
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil || box.Attached.Stack != api.StackGuest {
		t.Fatalf("gateway box attach: %d %s", code, out)
	}
	if out, _ := f.Sh("ip -o addr show dev eth0; ip route"); !strings.Contains(out, "10.200.") || !strings.Contains(out, "default") {
		t.Errorf("the sandbox finds no configuration to take over: %s", out)
	}
	g := takeOver(w, box.ID, f)
	g.assertWorks("attached")
	w.Kill()
	w.StartIfStopped()
	g.assertWorks("after a restart of the gateway")
	w.NFT("flush ruleset")
	w.Until("the rules are back", func() bool {
		return strings.HasPrefix(g.get(netip.AddrPortFrom(w.V4("plain.example.com"), 80), "/seen"), "HTTP/1.1 200")
	})
	g.assertWorks("after a flush of the rules")
	if out, _ := w.GatewayCommand("box", "get", "guest", "--json"); !strings.Contains(out, `"stack":"guest"`) && !strings.Contains(out, `"stack": "guest"`) {
		t.Errorf("read back: %s", out)
	}
	if out, code := w.GatewayCommand("box", "attach", "--pid", strconv.Itoa(f.PID), "--stack", "both"); code != 1 || !strings.Contains(out, "host or guest") {
		t.Errorf("an unknown stack: %d %s", code, out)
	}
}

// A self-test that cannot test from the namespace reports neither a tight box nor holes.
func TestSelfTestOfAGuestWithItsOwnNetworkStack(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	for name, body := range map[string]map[string]any{
		"attached as such": {"stack": "guest"},
		"found out":        {},
	} {
		f := harness.NewForeignBox(t)
		body["pid"] = f.PID
		var made struct{ ID string }
		if err := w.Client.Do(t.Context(), "POST", "/v2/box/attach", body, &made); err != nil {
			t.Fatal(err)
		}
		if name == "found out" {
			if card, code := w.SelfTest(made.ID); !card.Tight || card.Status != api.SelfTestTight || code != cli.ExitOK {
				t.Errorf("before it had a stack of its own: exit status %d, %+v", code, card.Summary)
			}
		}
		takeOver(w, made.ID, f)
		card, code := w.SelfTest(made.ID)
		if code != cli.ExitUntestable || card.Tight || card.Status != api.SelfTestUntestable || card.Reason == "" || len(card.Probes) != 0 {
			t.Errorf("%s: exit status %d, %+v", name, code, card)
		}
		if out, _ := w.GatewayCommand("box", "selftest", made.ID); !strings.Contains(out, "CANNOT BE TESTED") || strings.Contains(out, "NOT TIGHT") {
			t.Errorf("%s: %s", name, out)
		}
	}
}
