package firewall

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// rawIP sends handmade packets from a box that has raw sockets.
func (w *world) rawIP(box policy.BoxID, dst netip.Addr, b []byte) {
	w.t.Helper()
	w.must(w.in(w.boxNS[box], func() error {
		if dst.Is4() {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: dst.As4()})
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Sendto(fd, b, 0, &unix.SockaddrInet6{Addr: dst.As16()})
	}))
}

func packet4(src, dst netip.Addr, proto byte, options []byte, fragment uint16, payload []byte) []byte {
	n := 20 + len(options)
	b := make([]byte, n, n+len(payload))
	b[0] = 0x40 | byte(n/4)
	binary.BigEndian.PutUint16(b[2:], uint16(n+len(payload)))
	binary.BigEndian.PutUint16(b[4:], 77)
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[8], b[9] = 64, proto
	s, d := src.As4(), dst.As4()
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	copy(b[20:], options)
	return append(b, payload...)
}

func packet6(src, dst netip.Addr, next byte, payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	b[6], b[7] = next, 64
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
	return append(b, payload...)
}

func TestOnlyPlainPacketsOfKnownProtocolsPass(t *testing.T) {
	w := newWorld(t)
	a := w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/24", "2001:db8:2::/48"))
	udp := []byte{0x10, 0, 0x10, 1, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}
	v4, v6 := netip.MustParseAddr("198.51.100.33"), netip.MustParseAddr("2001:db8:2::33")
	extension := func(next byte) []byte { return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, udp...) }
	for label, b := range map[string][]byte{
		"first fragment":       packet4(a.V4, v4, unix.IPPROTO_UDP, nil, 0x2000, udp),
		"later fragment":       packet4(a.V4, v4, unix.IPPROTO_UDP, nil, 0x0003, udp),
		"IP options":           packet4(a.V4, v4, unix.IPPROTO_UDP, []byte{148, 4, 0, 0}, 0, udp),
		"GRE":                  packet4(a.V4, v4, unix.IPPROTO_GRE, nil, 0, udp),
		"IP in IP":             packet4(a.V4, v4, unix.IPPROTO_IPIP, nil, 0, udp),
		"SCTP":                 packet4(a.V4, v4, unix.IPPROTO_SCTP, nil, 0, udp),
		"ICMP that is no echo": packet4(a.V4, v4, unix.IPPROTO_ICMP, nil, 0, []byte{13, 0, 0xf2, 0xff, 0, 0, 0, 0}),
		"v6 hop-by-hop":        packet6(a.V6, v6, unix.IPPROTO_HOPOPTS, extension(unix.IPPROTO_UDP)),
		"v6 destination":       packet6(a.V6, v6, unix.IPPROTO_DSTOPTS, extension(unix.IPPROTO_UDP)),
		"v6 fragment":          packet6(a.V6, v6, unix.IPPROTO_FRAGMENT, extension(unix.IPPROTO_UDP)),
		"v6 SCTP":              packet6(a.V6, v6, unix.IPPROTO_SCTP, udp),
		"v6 in v6":             packet6(a.V6, v6, unix.IPPROTO_IPV6, udp),
	} {
		to := v4
		if b[0]>>4 == 6 {
			to = v6
		}
		before := w.count("refused_" + string(name.ReasonProtocol))
		w.rawIP("one", to, b)
		w.wait(label+" is refused", func() bool { return w.count("refused_"+string(name.ReasonProtocol)) > before })
	}
	w.nothingArrived("one", v4)
	w.nothingArrived("one", v6)
	w.waitEvent("protocol", func(e audit.Event) bool {
		return e.Box == "one" && e.Reason == name.ReasonProtocol && e.Addr == v6
	})
}

func TestEchoPassesToAllowedAddressesAtALimitedRate(t *testing.T) {
	w := newWorld(t)
	a := w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28", "2001:db8:2::/64"))
	echo := []byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}
	for range 60 {
		w.rawIP("one", outside4, packet4(a.V4, outside4, unix.IPPROTO_ICMP, nil, 0, echo))
	}
	w.rawIP("one", netip.MustParseAddr("198.51.100.99"),
		packet4(a.V4, netip.MustParseAddr("198.51.100.99"), unix.IPPROTO_ICMP, nil, 0, echo))
	w.flushWire("one")
	w.wait("an echo request arrives", func() bool {
		return w.wire.find(func(p seenPacket) bool { return p.dst == outside4 && p.proto == unix.IPPROTO_ICMP })
	})
	if w.count("ping_rate") == 0 {
		t.Error("sixty echo requests at once were all forwarded")
	}
	w.nothingArrived("one", netip.MustParseAddr("198.51.100.99"))
}
