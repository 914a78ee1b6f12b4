package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Boxes may ask any server. The kernel assigns such queries to sockets that are bound to other addresses, without
// translating the destination, and reports it with each datagram (ip(7), IP_PKTINFO; RFC 3542, section 6). The answer must
// leave from the address that was asked.

// peer is the sender of a query.
type peer struct {
	from  netip.AddrPort
	asked netip.Addr // not valid: the address of the socket
}

// infoSize is the space for the control message of either family.
const infoSize = unix.SizeofCmsghdr + (unix.SizeofInet6Pktinfo+7)&^7

// info is a buffer for one control message.
type info struct {
	header unix.Cmsghdr // aligns the buffer
	data   [infoSize - unix.SizeofCmsghdr]byte
}

// asked returns the address that a datagram was sent to, from a control message of n bytes, or the zero address.
func (c *info) asked(n uint64) netip.Addr {
	switch {
	case n >= unix.SizeofCmsghdr+unix.SizeofInet4Pktinfo && c.header.Level == unix.SOL_IP && c.header.Type == unix.IP_PKTINFO:
		return netip.AddrFrom4((*unix.Inet4Pktinfo)(unsafe.Pointer(&c.data)).Addr)
	case n >= unix.SizeofCmsghdr+unix.SizeofInet6Pktinfo && c.header.Level == unix.SOL_IPV6 && c.header.Type == unix.IPV6_PKTINFO:
		return netip.AddrFrom16((*unix.Inet6Pktinfo)(unsafe.Pointer(&c.data)).Addr)
	}
	return netip.Addr{}
}

// put makes a datagram leave from an address, and returns the size of the control message.
func (c *info) put(from netip.Addr) int {
	*c = info{}
	size := unix.SizeofInet6Pktinfo
	if from.Is4() {
		size = unix.SizeofInet4Pktinfo
		c.header.Level, c.header.Type = unix.SOL_IP, unix.IP_PKTINFO
		(*unix.Inet4Pktinfo)(unsafe.Pointer(&c.data)).Spec_dst = from.As4()
	} else {
		c.header.Level, c.header.Type = unix.SOL_IPV6, unix.IPV6_PKTINFO
		(*unix.Inet6Pktinfo)(unsafe.Pointer(&c.data)).Addr = from.As16()
	}
	c.header.SetLen(unix.CmsgLen(size))
	return unix.CmsgSpace(size)
}

// bytes returns the first n bytes of the buffer.
func (c *info) bytes(n int) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(c)), n) }

// reportAsked makes the kernel report the destination of each datagram.
func reportAsked(fd int, v4 bool) error {
	if v4 {
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_PKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
}

// reportsAsked reports whether the kernel reports the destination of each datagram of a socket, which another process may
// have opened.
func reportsAsked(fd int) bool {
	v4, _ := unix.GetsockoptInt(fd, unix.SOL_IP, unix.IP_PKTINFO)
	v6, _ := unix.GetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVPKTINFO)
	return v4 != 0 || v6 != 0
}

// ListenUDPForAny opens the socket at an address to which the kernel assigns queries for any server. lc must make it
// transparent. Serve it with [Server.ServeUDP], which answers from the address that was asked.
func ListenUDPForAny(ctx context.Context, lc net.ListenConfig, at netip.AddrPort) (net.PacketConn, error) {
	pc, err := lc.ListenPacket(ctx, "udp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen for queries to any server at %s: %w", at, err)
	}
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen for queries to any server: a %T", pc), pc.Close())
	}
	if err := control(conn, func(fd int) error { return reportAsked(fd, at.Addr().Is4()) }); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for queries to any server at %s: %w", at, err), pc.Close())
	}
	return pc, nil
}
