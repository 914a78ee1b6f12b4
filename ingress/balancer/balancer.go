package balancer

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

// List are the networks of balancers. An empty list trusts no one.
type List []netip.Prefix

// Has reports whether a connection comes from a balancer.
func (l List) Has(c net.Conn) bool {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || len(l) == 0 {
		return false
	}
	from := tcp.AddrPort().Addr().Unmap().WithZone("")
	return slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Contains(from) })
}

// Accept reads the header of a connection from a balancer, until a deadline. The result has the visitor's address.
func Accept(c net.Conn, deadline time.Time) (net.Conn, error) {
	_ = c.SetReadDeadline(deadline)
	h, err := Read(c)
	if err != nil {
		return nil, err
	}
	_ = c.SetReadDeadline(time.Time{})
	if !h.From.IsValid() {
		return c, nil
	}
	return &conn{Conn: c, from: net.TCPAddrFromAddrPort(h.From)}, nil
}

// conn is a connection with the address of the balancer's client.
type conn struct {
	net.Conn
	from net.Addr
}

// RemoteAddr implements [net.Conn].
func (c *conn) RemoteAddr() net.Addr { return c.from }

// NetConn returns the underlying connection.
func (c *conn) NetConn() net.Conn { return c.Conn }

const (
	signature = "\r\n\r\n\x00\r\nQUIT\n"
	fixedSize = len(signature) + 4
	// mostSize is the maximum length after the fixed part: addresses and extensions, such as visitors' certificates.
	mostSize = 16 << 10

	local = 0x20 // version 2, the balancer's own connection
	proxy = 0x21 // version 2, a connection passed on
	tcp4  = 0x11
	tcp6  = 0x21

	typeChecksum = 0x03
)

var (
	errSignature = errors.New("the connection does not begin with a header of the PROXY protocol, version 2")
	errSize      = errors.New("the PROXY header is too long")
	errFamily    = errors.New("the PROXY header is not about a TCP connection")
	errShort     = errors.New("the PROXY header is cut short")
	errAddress   = errors.New("the PROXY header has an address that no visitor has")
	errChecksum  = errors.New("the PROXY header is damaged")
)

// Header is the information from a balancer about a connection.
type Header struct {
	// From is the visitor's address. It is zero for the balancer's own connections, such as health checks.
	From netip.AddrPort
}

// Read reads a header, and no byte after it.
func Read(r io.Reader) (Header, error) {
	var fixed [fixedSize]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return Header{}, errors.Join(errSignature, err)
	}
	if string(fixed[:len(signature)]) != signature {
		return Header{}, errSignature
	}
	command, family := fixed[len(signature)], fixed[len(signature)+1]
	size := int(binary.BigEndian.Uint16(fixed[len(signature)+2:]))
	switch {
	case command != local && command != proxy:
		return Header{}, errSignature
	case size > mostSize:
		return Header{}, errSize
	}
	rest := make([]byte, size)
	if _, err := io.ReadFull(r, rest); err != nil {
		return Header{}, errors.Join(errShort, err)
	}
	if command == local { // its addresses must be ignored
		return Header{}, nil
	}
	return parse(fixed[:], family, rest)
}

// parse parses the rest of a header after the fixed part, for a forwarded connection.
func parse(fixed []byte, family byte, rest []byte) (Header, error) {
	n := 0 // the size of an address
	switch family {
	case tcp4:
		n = 4
	case tcp6:
		n = 16
	default:
		return Header{}, errFamily
	}
	if len(rest) < 2*n+4 {
		return Header{}, errShort
	}
	from, _ := netip.AddrFromSlice(rest[:n])
	h := Header{From: netip.AddrPortFrom(from.Unmap(), binary.BigEndian.Uint16(rest[2*n:]))}
	if a := h.From.Addr(); a.IsUnspecified() || a.IsMulticast() {
		return Header{}, errAddress
	}
	if err := check(fixed, rest, 2*n+4); err != nil {
		return Header{}, err
	}
	return h, nil
}

// check parses the balancer's extensions after the addresses, and verifies the checksum if there is one.
func check(fixed, rest []byte, at int) error {
	for at < len(rest) {
		if len(rest)-at < 3 {
			return errShort
		}
		kind, size := rest[at], int(binary.BigEndian.Uint16(rest[at+1:]))
		value := at + 3
		if len(rest)-value < size {
			return errShort
		}
		if kind == typeChecksum && (size != 4 || !intact(fixed, rest, value)) {
			return errChecksum
		}
		at = value + size
	}
	return nil
}

// intact verifies the checksum at an offset of a header, where it counts as zero.
func intact(fixed, rest []byte, at int) bool {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, fixed)
	sum = crc32.Update(sum, table, rest[:at])
	sum = crc32.Update(sum, table, make([]byte, 4))
	sum = crc32.Update(sum, table, rest[at+4:])
	return sum == binary.BigEndian.Uint32(rest[at:])
}
