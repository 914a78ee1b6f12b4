package dns

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchSize is how many datagrams are read, and answers sent, by one system call.
const batchSize = 16

// datagram is the kernel's struct mmsghdr.
type datagram struct {
	header unix.Msghdr
	size   uint32
}

// batch reads and sends datagrams by recvmmsg(2) and sendmmsg(2). It allocates nothing: a [net.UDPConn] has no such calls,
// and golang.org/x/net allocates an address for each datagram. Not safe for concurrent use.
type batch struct {
	raw      syscall.RawConn
	receive  func(fd uintptr) bool // recvmmsg
	transmit func(fd uintptr) bool // sendmmsg

	in       [batchSize]datagram
	inParts  [batchSize]unix.Iovec
	peers    [batchSize]unix.RawSockaddrInet6 // large enough for both families
	bufs     [batchSize]*[maxQuery]byte       // nil: taken
	received int
	err      error

	out      [batchSize]datagram
	outParts [batchSize]unix.Iovec
	replies  [batchSize][udpSize]byte
	waiting  int // in out, of which the first are sent
	sent     int
}

func newBatch(c *net.UDPConn) (*batch, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &batch{raw: raw}
	b.receive, b.transmit = b.recvmmsg, b.sendmmsg
	for i := range batchSize {
		b.in[i].header = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.peers[i])), Iov: &b.inParts[i]}
		b.in[i].header.SetIovlen(1)
		b.out[i].header = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.peers[i])), Iov: &b.outParts[i]}
		b.out[i].header.SetIovlen(1)
	}
	b.received = batchSize // prepares all
	return b, nil
}

// read waits for datagrams and returns their number.
func (b *batch) read() (int, error) {
	for i := range b.received { // what the last ones have changed
		if b.bufs[i] == nil {
			b.bufs[i] = queryBuffers.Get().(*[maxQuery]byte)
			b.inParts[i].Base = &b.bufs[i][0]
			b.inParts[i].SetLen(maxQuery)
		}
		b.in[i].header.Namelen = unix.SizeofSockaddrInet6
	}
	b.received = 0
	if err := b.raw.Read(b.receive); err != nil {
		return 0, err
	}
	return b.received, b.err
}

// recvmmsg reports false when there is nothing to read.
func (b *batch) recvmmsg(fd uintptr) bool {
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.in[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
	b.err = nil
	switch errno {
	case 0:
		b.received = int(n)
	case unix.EAGAIN, unix.EINTR:
		return false
	default:
		b.err = errno
	}
	return true
}

// query returns a datagram that has been read, which is overwritten by the next read, and where it came from.
func (b *batch) query(i int) ([]byte, netip.AddrPort) {
	return b.bufs[i][:b.in[i].size], addrPort(&b.peers[i])
}

// take is query for a datagram that is kept: its buffer goes back to queryBuffers.
func (b *batch) take(i int) *[maxQuery]byte {
	buf := b.bufs[i]
	b.bufs[i] = nil
	return buf
}

func addrPort(sa *unix.RawSockaddrInet6) netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:])
	if sa.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), port)
}

// room is where the next answer can be written.
func (b *batch) room() []byte { return b.replies[b.waiting][:0] }

// add puts the answer to datagram i among those to be sent. It must not change until flush.
func (b *batch) add(i int, answer []byte) {
	n := b.waiting
	b.outParts[n].Base = &answer[0]
	b.outParts[n].SetLen(len(answer))
	b.out[n].header.Name, b.out[n].header.Namelen = b.in[i].header.Name, b.in[i].header.Namelen
	b.waiting++
}

// flush sends the answers. It does not wait: one that cannot be sent is lost like any datagram, and the client asks again.
func (b *batch) flush() {
	for b.sent = 0; b.sent < b.waiting; {
		if b.raw.Write(b.transmit) != nil {
			break
		}
	}
	b.waiting = 0
}

// sendmmsg sends some of the answers. The socket's queue may be full of answers to one box that takes none: those to
// others do not wait for it.
func (b *batch) sendmmsg(fd uintptr) bool {
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&b.out[b.sent])), uintptr(b.waiting-b.sent), unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
		b.sent += int(n)
	case unix.EINTR:
	default:
		b.sent++ // the first of them could not be sent
	}
	return true
}
