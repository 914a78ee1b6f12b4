package fault

import (
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
)

// The kernel's connection tracking table is full: new connections fail, denied ones stay denied, the log reports the
// reason, and with free entries everything works again.
func TestAttackConntrackTableFull(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	r := w.Raid(w.Create(map[string]any{"network_policy": wide}))
	s := besiege(w, harness.AttackerAt(101))
	w.Until("allowed", func() bool { return r.Try("udp", netip.AddrPortFrom(extra[0], 4444)) == harness.Saw(nil) })
	empty := fillConntrack(w)
	w.Until("the log says so", func() bool { return strings.Contains(w.ReadLog(), "connection table is nearly full") })
	// A flow that is not in the table yet is dropped, or forwarded if the kernel has evicted another.
	if got := r.Try("udp", netip.AddrPortFrom(extra[1], 4444)); got != harness.Saw(nil) && got != harness.SawNothing {
		t.Errorf("a new flow that is allowed: %s", got)
	}
	for _, a := range s.targets {
		if got := r.Try("udp", netip.AddrPortFrom(a, 853)); got == harness.Saw(nil) {
			t.Errorf("a datagram to %v was answered", a)
		}
	}
	w.SetPolicy(r.Box, narrow) // the kernel accepts it although its table is full
	if r.Try("udp", netip.AddrPortFrom(extra[0], 4444)) == harness.Saw(nil) {
		t.Error("a policy that tightens has no effect while the table is full")
	}
	empty()
	w.Until("the log says that there is room", func() bool { return strings.Contains(w.ReadLog(), "has room again") })
	w.SetPolicy(r.Box, wide)
	if !agrees(r, "with room again") {
		t.Error("the policy is not in force")
	}
	s.assertHolds()
}

// fillConntrack adds entries in the gateway's namespace until the kernel accepts no more. The returned function deletes
// them.
func fillConntrack(w *harness.World) (empty func()) {
	w.T.Helper()
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	limit, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || limit == 0 || limit > 1<<21 {
		w.T.Fatalf("the table's size is %d (%v): this test wants a finite one that fits into memory", limit, err)
	}
	var conn *conntrack.Conn
	err = w.Net.Gateway().Do(func() (err error) {
		if conn, err = conntrack.Dial(nil); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var batch []byte
		for i := range limit + 1000 {
			if batch = append(batch, newConntrackEntry(uint32(i))...); i%200 == 199 {
				if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
					return err
				}
				batch = batch[:0]
			}
		}
		return nil
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { conn.Close() })
	return func() {
		if err := conn.Flush(); err != nil {
			w.T.Fatal(err)
		}
	}
}

// newConntrackEntry returns the netlink message that creates one entry: a UDP flow between shared addresses (RFC 6598),
// which send no packets. The kernel considers it answered and does not evict it for another.
func newConntrackEntry(i uint32) []byte {
	src, dst := []byte{100, 127, byte(i >> 16), byte(i >> 8)}, []byte{100, 126, 0, 1}
	here, there := uint16(1+i&0xff), uint16(9)
	attr := func(kind uint16, data ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	number := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	tuple := func(kind uint16, src, dst []byte, sport, dport uint16) []byte {
		addrs := attr(1|unix.NLA_F_NESTED, append(attr(1, src...), attr(2, dst...)...)...)                                                    // CTA_TUPLE_IP
		ports := attr(2|unix.NLA_F_NESTED, slices.Concat(attr(1, unix.IPPROTO_UDP), attr(2, number(sport)...), attr(3, number(dport)...))...) // CTA_TUPLE_PROTO
		return attr(kind|unix.NLA_F_NESTED, append(addrs, ports...)...)
	}
	status := uint32(conntrack.StatusAssured | conntrack.StatusSeenReply | conntrack.StatusConfirmed)
	body := slices.Concat([]byte{unix.AF_INET, 0, 0, 0}, // nfgenmsg
		tuple(1, src, dst, here, there), tuple(2, dst, src, there, here),
		attr(3, binary.BigEndian.AppendUint32(nil, status)...), attr(7, binary.BigEndian.AppendUint32(nil, 600)...))
	head := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
	head = binary.NativeEndian.AppendUint16(head, 1<<8) // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW
	head = binary.NativeEndian.AppendUint16(head, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	return slices.Concat(head, make([]byte, 8), body)
}
