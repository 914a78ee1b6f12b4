package packet

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

var (
	box4, box6           = netip.MustParseAddr("10.200.0.3"), netip.MustParseAddr("fd42:b0c5::3")
	stranger4, stranger6 = netip.MustParseAddr("8.8.8.77"), netip.MustParseAddr("2001:4860:4860::77")
)

// Written packets are read back, with checksums that a receiver accepts.
func TestPacketsAreReadBack(t *testing.T) {
	t.Parallel()
	for _, end := range [][2]netip.Addr{{box4, stranger4}, {box6, stranger6}} {
		src, dst := netip.AddrPortFrom(end[0], 1234), netip.AddrPortFrom(end[1], 4242)
		datagram := UDP(src, dst, []byte("odd"))
		if sum := sumWith(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, datagram); sum != 0 {
			t.Errorf("%v: the datagram's checksum is off by %x", dst, sum)
		}
		whole := IP(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, datagram)
		if p, ok := Read(whole); !ok || p.src != src || p.Dst != dst || p.Proto != unix.IPPROTO_UDP {
			t.Errorf("read %+v %t", p, ok)
		}
		if dst.Addr().Is4() && checksum(whole[:20]) != 0 {
			t.Error("the header's checksum is wrong")
		}
	}
	later := IPv4(box4, stranger4, unix.IPPROTO_UDP, nil, 2, []byte("not ports"))
	if p, ok := Read(later); !ok || p.Dst.Port() != 0 {
		t.Errorf("ports were read from a later fragment: %+v", p)
	}
	echo := Echo(box6, stranger6, 1, []byte("x"))
	if sum := sumWith(box6, stranger6, unix.IPPROTO_ICMPV6, echo); sum != 0 {
		t.Errorf("the ping's checksum is off by %x", sum)
	}
}

// Received packets can have any content.
func FuzzReadPacket(f *testing.F) {
	f.Add(IP(box4, stranger4, unix.IPPROTO_TCP, make([]byte, 20)))
	f.Add(IP(box6, stranger6, unix.IPPROTO_ICMPV6, []byte{1}))
	f.Add(IPv4(box4, stranger4, unix.IPPROTO_UDP, []byte{148, 4, 0, 0}, 0, []byte{1, 2, 3}))
	f.Add([]byte{0x4f})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := Read(b)
		if ok != p.Dst.IsValid() || ok && len(b) < 20 {
			t.Errorf("%x: %+v %t", b, p, ok)
		}
	})
}
