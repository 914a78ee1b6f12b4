package dns

import (
	"encoding/binary"
	"net/netip"
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
	socket *socket

	in       [batchSize]datagram
	inParts  [batchSize]unix.Iovec
	peers    [batchSize]unix.RawSockaddrInet6 // large enough for both families
	bufs     [batchSize]*[maxQuery]byte       // nil: taken
	received int

	out      [batchSize]datagram
	outParts [batchSize]unix.Iovec
	outPeers [batchSize]unix.RawSockaddrInet6
	replies  [batchSize][udpSize]byte
	waiting  int // in out
}

func newBatch(s *socket) *batch {
	b := &batch{socket: s}
	for i := range batchSize {
		b.in[i].header = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.peers[i])), Iov: &b.inParts[i]}
		b.in[i].header.SetIovlen(1)
		b.out[i].header = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.outPeers[i])), Iov: &b.outParts[i]}
		b.out[i].header.SetIovlen(1)
	}
	b.received = batchSize // prepares all
	return b
}

// read waits for datagrams and returns their number. With [unix.MSG_DONTWAIT] it does not wait.
func (b *batch) read(flags uintptr) (int, error) {
	for i := range b.received { // what the last ones have changed
		if b.bufs[i] == nil {
			b.bufs[i] = queryBuffers.Get().(*[maxQuery]byte)
			b.inParts[i].Base = &b.bufs[i][0]
			b.inParts[i].SetLen(maxQuery)
		}
		b.in[i].header.Namelen = unix.SizeofSockaddrInet6
	}
	// While queries come one after the other, the next has often arrived already: the Go scheduler need then not be told of a call that
	// may wait.
	errno := unix.EAGAIN
	var n uintptr
	if b.received > 1 || flags&unix.MSG_DONTWAIT != 0 {
		n, _, errno = unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(b.socket.fd), uintptr(unsafe.Pointer(&b.in[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
	}
	b.received = 0
	if errno == unix.EAGAIN && flags&unix.MSG_DONTWAIT == 0 {
		n, _, errno = unix.Syscall6(unix.SYS_RECVMMSG, uintptr(b.socket.fd), uintptr(unsafe.Pointer(&b.in[0])), batchSize, unix.MSG_WAITFORONE, 0, 0)
	}
	switch errno {
	case 0:
		b.received = int(n)
	case unix.EINTR, unix.EAGAIN:
	default:
		return 0, errno
	}
	return b.received, nil
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
func (b *batch) room() []byte {
	if b.waiting == batchSize {
		b.flush()
	}
	return b.replies[b.waiting][:0]
}

// add puts an answer, for which there is room, among those to be sent. It must not change until flush.
func (b *batch) add(answer []byte, to netip.AddrPort) {
	n := b.waiting
	b.outParts[n].Base = &answer[0]
	b.outParts[n].SetLen(len(answer))
	b.out[n].header.Namelen = putAddrPort(&b.outPeers[n], to)
	b.waiting++
}

func putAddrPort(sa *unix.RawSockaddrInet6, a netip.AddrPort) (size uint32) {
	if a.Addr().Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(sa)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.Addr().As4()}
		size = unix.SizeofSockaddrInet4
	} else {
		*sa = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: a.Addr().As16()}
		size = unix.SizeofSockaddrInet6
	}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:], a.Port())
	return size
}

// flush sends the answers. It does not wait: one that cannot be sent is lost like any datagram, and the client asks again.
// The socket's queue may be full of answers to one box that takes none: those to others do not wait for it.
func (b *batch) flush() {
	for sent := 0; sent < b.waiting; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(b.socket.fd), uintptr(unsafe.Pointer(&b.out[sent])), uintptr(b.waiting-sent), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			sent += int(n)
		case unix.EINTR:
		default:
			sent++ // the first of them could not be sent
		}
	}
	b.waiting = 0
}
