package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/link"
)

// computeChecksums makes the uplink compute checksums before it sends, as a network card does that the kernel has asked for it.
func (w *world) computeChecksums() {
	w.t.Helper()
	w.must(w.in(w.gateway, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		off := [2]uint32{unix.ETHTOOL_STXCSUM, 0}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&off)}
		copy(request.name[:], "up0")
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	}))
}

// unfinished returns a frame with the header of virtio that asks for its checksum, computed from start and stored at field. Both
// are offsets in the frame.
func unfinished(frame []byte, start, field int) []byte {
	b := []byte{1, 0, 0, 0, 0, 0} // VIRTIO_NET_HDR_F_NEEDS_CSUM
	b = binary.NativeEndian.AppendUint16(b, uint16(start))
	b = binary.NativeEndian.AppendUint16(b, uint16(field-start))
	return append(b, frame...)
}

// openWithHeader opens a tap whose frames have the header of virtio.
func (w *world) openWithHeader(ns netns.NsHandle, name string) func([]byte) {
	w.t.Helper()
	var f *os.File
	w.must(w.in(ns, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), name)
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}))
	w.t.Cleanup(func() { _ = f.Close() })
	return func(b []byte) { _, _ = f.Write(b) } // the kernel refuses some
}

// packetSocket returns a function that sends frames with the header of virtio from the interface of a box.
func (w *world) packetSocket(ns netns.NsHandle) func([]byte) {
	w.t.Helper()
	var fd, index int
	w.must(w.in(ns, func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		l, err := netlink.LinkByName(link.Inside)
		if err != nil {
			return err
		}
		index = l.Attrs().Index
		return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	}))
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	return func(b []byte) { _ = unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: index}) } // the kernel refuses some
}

// A checksum that the uplink computes lands in no address and no port: neither of a virtual machine, nor of a box with packet
// sockets. The kernel's own connections are unaffected.
func TestChecksumsRewriteNoHeaders(t *testing.T) {
	w := newWorld(t)
	w.computeChecksums()
	guest := w.addGuest("guest", 20, false)
	_ = guest.tap.Close()
	inside := w.addGuest("inside", 21, true)
	_ = inside.tap.Close()
	box := w.addBox("box", 22)
	for _, c := range []struct {
		Attachment
		send func([]byte)
	}{
		{guest.Attachment, w.openWithHeader(w.gateway, guest.Tap.Name)},
		{inside.Attachment, w.openWithHeader(w.boxNS["inside"], inside.Tap.Name)},
		{box, w.packetSocket(w.boxNS["box"])},
	} {
		to4, to6 := netip.MustParseAddr("198.51.100.60"), netip.MustParseAddr("2001:db8:2::60")
		w.apply(c.Box, allow(netip.PrefixFrom(to4, 32).String(), netip.PrefixFrom(to6, 128).String()))
		frame := func(kind uint16, p []byte) []byte { return ether(link.HostMAC(c.Box), link.MAC(c.Box), kind, p) }
		port := uint16(4000)
		udp := func() []byte { // each of a connection of its own
			port++
			b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, port), 4001)
			return append(b, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)
		}
		v4 := func() []byte {
			return frame(unix.ETH_P_IP, checked(packet4(c.V4, to4, unix.IPPROTO_UDP, nil, 0, udp())))
		}
		v6 := func() []byte { return frame(unix.ETH_P_IPV6, packet6(c.V6, to6, unix.IPPROTO_UDP, udp())) }
		extended := func() []byte {
			return frame(unix.ETH_P_IPV6, packet6(c.V6, to6, unix.IPPROTO_DSTOPTS, append([]byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}, udp()...)))
		}
		w.wait("a packet with an unfinished checksum arrives", func() bool {
			c.send(unfinished(v4(), 34, 40))
			c.send(unfinished(v6(), 54, 60))
			return w.wire.find(func(p seenPacket) bool { return p.dst == to4 }) && w.wire.find(func(p seenPacket) bool { return p.dst == to6 })
		})
		for _, start := range []int{14, 20, 34} {
			for field := start; field < 38; field += 2 {
				c.send(unfinished(v4(), start, field))
			}
		}
		for _, start := range []int{14, 20, 34, 54} {
			for field := start; field < 58; field += 2 {
				c.send(unfinished(v6(), start, field))
			}
		}
		for field := 54; field < 66; field += 2 {
			c.send(unfinished(extended(), 54, field))
		}
		w.wait("a packet without one arrives", func() bool {
			last := udp()
			copy(last[8:], "the last")
			c.send(append(make([]byte, 10), frame(unix.ETH_P_IP, checked(packet4(c.V4, to4, unix.IPPROTO_UDP, nil, 0, last)))...))
			return w.wire.find(func(p seenPacket) bool { return bytes.Contains(p.raw, []byte("the last")) })
		})
		w.wire.find(func(p seenPacket) bool {
			at := 20
			switch {
			case p.proto == unix.IPPROTO_ICMP || p.proto == unix.IPPROTO_ICMPV6 || p.dst.IsMulticast() && p.proto == unix.IPPROTO_HOPOPTS: // of the gateway's kernel
				return false
			case p.dst.Is6() && p.proto == unix.IPPROTO_DSTOPTS:
				at = 48
			case p.dst.Is6():
				at = 40
			}
			if port := binary.BigEndian.Uint16(p.raw[at+2:]); p.dst != to4 && p.dst != to6 || p.src != uplink4 && p.src != uplink6 || port != 4001 {
				t.Errorf("%s: a packet from %v to %v, port %d, arrived", c.Box, p.src, p.dst, port)
			}
			return false
		})
		w.must(w.fw.RemoveBox(context.Background(), c.Box))
		w.wire.mu.Lock()
		w.wire.seen = nil
		w.wire.mu.Unlock()
	}
}

// A box does not make the uplink send many headers that no limit counts, by packets to be split into tiny ones (UDP_SEGMENT). Larger
// parts pass.
func TestPacketsAreNotSplitIntoTinyOnes(t *testing.T) {
	w := newWorld(t)
	w.computeChecksums()
	box := w.addBox("box", 22)
	w.apply(box.Box, allow("198.51.100.0/24"))
	send := func(to string, part int) {
		c, err := w.dial(w.boxNS[box.Box], "udp", netip.AddrPortFrom(netip.MustParseAddr(to), 4001))
		w.must(err)
		raw, err := c.(*net.UDPConn).SyscallConn()
		w.must(err)
		w.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, part) }))
		w.must(err)
		_, err = c.Write(make([]byte, 120))
		w.must(err)
	}
	arrived := func(to string) (n int) {
		w.wire.find(func(p seenPacket) bool {
			if p.dst == netip.MustParseAddr(to) {
				n++
			}
			return false
		})
		return n
	}
	send("198.51.100.60", 1)
	send("198.51.100.61", 60)
	w.wait("the parts of a packet arrive", func() bool { return arrived("198.51.100.61") == 2 })
	w.flushWire(box.Box)
	if n := arrived("198.51.100.60"); n != 0 {
		t.Errorf("a packet of 120 bytes was sent in %d", n)
	}
}
