package outbound

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// UDPSize is the size in bytes of the largest message over UDP that risks no fragmentation (DNS flag day 2020).
const UDPSize = 1232

// Sizes of a message's parts.
const (
	headerSize  = 12
	maxQuestion = headerSize + 255 + 4 + 11 // header, name, type and class, OPT record
)

// Bits of the flags, in the third and the fourth byte of a message.
const (
	flagResponse  = 0x80
	maskOpcode    = 0x78
	flagTruncated = 0x02
	flagRecursion = 0x01
	maskRcode     = 0x0f
)

// Question is a question that has been sent to a server.
type Question[T any] struct {
	For  T
	Sent time.Time

	open  bool
	index int32
	watch func(fd int, index int32) error
	fd    int // -1: no socket yet
	v6    bool
	wire  [maxQuestion]byte
	size  int // of wire
	end   int // of the question in wire, from the header's end
}

// write encodes the message: recursion desired, EDNS for larger answers, no DNSSEC records. coins are random bytes for
// the ID, then for the case of each letter (draft-vixie-dnsext-dns0x20).
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
	b = binary.BigEndian.AppendUint16(b, UDPSize)
	q.size = len(append(b, 0, 0, 0, 0, 0, 0))
}

// send sends the question from a new random port, which the kernel picks for each socket that connects unbound.
func (q *Question[T]) send(server netip.AddrPort) error {
	if err := q.connectTo(server); err != nil {
		return err
	}
	if !q.drain() { // a new socket has no queue from another port
		q.close()
		if err := q.connectTo(server); err != nil {
			return err
		}
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(q.fd), uintptr(unsafe.Pointer(&q.wire[0])), uintptr(q.size), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return errOf(errno)
}

func (q *Question[T]) connectTo(server netip.AddrPort) error {
	if err := q.openSocket(server.Addr().Is6()); err != nil {
		return err
	}
	var to unix.RawSockaddrInet6
	return q.connect(&to, rawSockaddr(server, &to))
}

// maxLate is how many late datagrams are read from a reused socket. If it has more, it is replaced.
const maxLate = 64

// drain discards the datagrams and errors of the socket's previous port, which do not concern this question. It reports
// whether the queue is empty.
func (q *Question[T]) drain() bool {
	var old [1]byte
	for range maxLate {
		if _, err := q.recv(old[:]); errors.Is(err, unix.EAGAIN) {
			return true
		}
	}
	return false
}

// openSocket opens the question's socket, unless it has one of that family.
func (q *Question[T]) openSocket(v6 bool) error {
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
	q.close()
	q.fd, q.v6 = fd, v6
	return nil
}

// close closes the question's socket, if it has one.
func (q *Question[T]) close() {
	if q.fd >= 0 {
		_ = unix.Close(q.fd)
		q.fd = -1
	}
}

// disconnect disconnects the socket, which unbinds it from its port.
func (q *Question[T]) disconnect() {
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

// ErrSuspect ends a question whose answer is truncated, malformed, or does not repeat the question letter for letter:
// the server folds case, or the answer is forged. The caller asks again over a stream.
var ErrSuspect = errors.New("answer over UDP is truncated or suspect")

// errForeign is returned for a message that does not end the question.
var errForeign = errors.New("not an answer to this question")

// receive reads a datagram. It returns the answer, errForeign to keep waiting, or the error that ends the question.
func (q *Question[T]) receive(buf []byte) ([]byte, error) {
	n, err := q.recv(buf)
	switch {
	case err == nil:
		return q.checkAnswer(buf[:n])
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return nil, errForeign
	}
	return nil, err // the port is closed
}

// checkAnswer returns a message from the server's address if it answers the question. A message with another ID is forged or
// late. A server that fails before it parses the question may omit the question.
func (q *Question[T]) checkAnswer(m []byte) ([]byte, error) {
	if len(m) < headerSize || m[0] != q.wire[0] || m[1] != q.wire[1] || m[2]&flagResponse == 0 {
		return nil, errForeign
	}
	code, questions := m[3]&maskRcode, binary.BigEndian.Uint16(m[4:])
	if m[2]&(maskOpcode|flagTruncated) != 0 {
		return nil, ErrSuspect
	}
	if questions == 0 && code != mdns.RcodeSuccess && code != mdns.RcodeNameError {
		return m, nil
	}
	if questions != 1 || len(m) < q.end || !bytes.Equal(m[headerSize:q.end], q.wire[headerSize:q.end]) {
		return nil, ErrSuspect
	}
	return m, nil
}
