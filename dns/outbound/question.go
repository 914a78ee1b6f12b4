package outbound

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Sizes of a message and its parts.
const (
	headerSize  = 12
	maxQuestion = headerSize + 255 + 4 + 11 // header, name, type and class, OPT record
	udpSize     = 1232
)

// Bits of the flags, in the third and the fourth byte of a message.
const (
	flagResponse  = 0x80
	maskOpcode    = 0x78
	flagTruncated = 0x02
	flagRecursion = 0x01
	maskRcode     = 0x0f
)

// Question is one that has been sent to a server.
type Question[T any] struct {
	For  T
	Sent time.Time

	open  bool
	index int32
	watch func(fd int, index int32) error
	fd    int // -1: none yet
	v6    bool
	wire  [maxQuestion]byte
	size  int // of wire
	end   int // of the question in wire, from the header's end
}

// write makes the message: recursion desired, EDNS for larger answers, no DNSSEC records. The coins are for the ID, then
// for the case of each letter (draft-vixie-dnsext-dns0x20).
func (q *Question[T]) write(name string, qtype uint16, coins []byte) {
	b := append(q.wire[:0], coins[0], coins[1], flagRecursion, 0, 0, 1, 0, 0, 0, 0, 0, 1)
	coins = coins[2:]
	for label := range strings.SplitSeq(name, ".") {
		b = append(b, byte(len(label)))
		for i := range len(label) {
			c := label[i]
			if 'a' <= c && c <= 'z' && coins[i]&1 == 1 {
				c -= 'a' - 'A'
			}
			b = append(b, c)
		}
		coins = coins[min(len(label)+1, len(coins)):]
	}
	b = append(b, 0)
	b = binary.BigEndian.AppendUint16(b, qtype)
	b = binary.BigEndian.AppendUint16(b, mdns.ClassINET)
	q.end = len(b)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint16(b, mdns.TypeOPT)
	b = binary.BigEndian.AppendUint16(b, udpSize)
	q.size = len(append(b, 0, 0, 0, 0, 0, 0))
}

// send sends the question from a port that the kernel picks at random now, as it does for each socket that connects
// without one.
func (q *Question[T]) send(server netip.AddrPort) error {
	if err := q.socket(server.Addr().Is6()); err != nil {
		return err
	}
	var to unix.RawSockaddrInet6
	if err := q.connect(&to, rawSockaddr(server, &to)); err != nil {
		return err
	}
	q.drain()
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(q.fd), uintptr(unsafe.Pointer(&q.wire[0])), uintptr(q.size), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return errOf(errno)
}

// drain reads what arrived at the port that the socket had before: neither that nor an error is about this question.
func (q *Question[T]) drain() {
	var old [1]byte
	for range 64 {
		if _, err := q.recv(old[:]); err == unix.EAGAIN {
			return
		}
	}
}

// socket opens the question's socket, unless it has one of that family.
func (q *Question[T]) socket(v6 bool) error {
	if q.fd >= 0 && q.v6 == v6 {
		return nil
	}
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := q.watch(fd, q.index); err != nil {
		_ = unix.Close(fd)
		return err
	}
	if q.fd >= 0 {
		_ = unix.Close(q.fd)
	}
	q.fd, q.v6 = fd, v6
	return nil
}

// release disconnects the socket, which unbinds it from its port.
func (q *Question[T]) release() {
	if q.fd >= 0 {
		none := unix.RawSockaddrInet6{Family: unix.AF_UNSPEC}
		_ = q.connect(&none, unix.SizeofSockaddrInet6)
	}
}

func (q *Question[T]) connect(to *unix.RawSockaddrInet6, size uintptr) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(q.fd), uintptr(unsafe.Pointer(to)), size)
	return errOf(errno)
}

func (q *Question[T]) recv(buf []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(q.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errOf(errno)
}

func errOf(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// receive reads a datagram, and reports whether the question is over; if it is answered, it returns the answer.
func (q *Question[T]) receive(buf []byte) (answer []byte, over bool) {
	n, err := q.recv(buf)
	switch err {
	case nil:
		return q.judge(buf[:n])
	case unix.EAGAIN, unix.EINTR:
		return nil, false
	}
	return nil, true // nobody listens there
}

// judge reports whether a message from the server's address ends the question. What does not have its ID is a forgery, or
// late. If anything else is wrong, it may be a server that folds case or a forger, and the answer is not returned.
func (q *Question[T]) judge(m []byte) (answer []byte, over bool) {
	if len(m) < headerSize || m[0] != q.wire[0] || m[1] != q.wire[1] || m[2]&flagResponse == 0 {
		return nil, false
	}
	code := m[3] & maskRcode
	if m[2]&(maskOpcode|flagTruncated) != 0 || code != mdns.RcodeSuccess && code != mdns.RcodeNameError ||
		binary.BigEndian.Uint16(m[4:]) != 1 || len(m) < q.end || !bytes.Equal(m[headerSize:q.end], q.wire[headerSize:q.end]) {
		return nil, true
	}
	return m, true
}
