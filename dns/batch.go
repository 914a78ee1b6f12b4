package dns

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchSize is the number of datagrams that one system call reads or sends.
const batchSize = 16

// datagram is the kernel's struct mmsghdr.
type datagram struct {
	header unix.Msghdr
	size   uint32
}

// batch reads and sends datagrams with recvmmsg(2) and sendmmsg(2), and does not allocate: a [net.UDPConn] lacks these
// calls, and golang.org/x/net allocates an address for each datagram. Not safe for concurrent use.
type batch struct {
	socket *socket

	in       [batchSize]datagram
	inParts  [batchSize]unix.Iovec
	peers    [batchSize]unix.RawSockaddrInet6 // large enough for both families
	bufs     [batchSize]*[maxQuery]byte       // nil: handed out by detachBuffer
	received int

	out      [batchSize]datagram
	outParts [batchSize]unix.Iovec
	outPeers [batchSize]unix.RawSockaddrInet6
	replies  [batchSize][udpSize]byte
	queued   int // the used entries of out
}

func newBatch(s *socket) *batch {
	b := &batch{socket: s}
	for i := range batchSize {
		b.in[i].header = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.peers[i])), Iov: &b.inParts[i]}
		b.in[i].header.SetIovlen(1)
		b.out[i].header = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.outPeers[i])), Iov: &b.outParts[i]}
		b.out[i].header.SetIovlen(1)
	}
	b.received = batchSize // makes the first read prepare all entries
	return b
}

// read waits for datagrams and returns their number. With [unix.MSG_DONTWAIT] it does not wait.
func (b *batch) read(flags uintptr) (int, error) {
	for i := range b.received { // the entries that the last read used
		if b.bufs[i] == nil {
			b.bufs[i] = queryBuffers.Get().(*[maxQuery]byte)
			b.inParts[i].Base = &b.bufs[i][0]
			b.inParts[i].SetLen(maxQuery)
		}
		b.in[i].header.Namelen = unix.SizeofSockaddrInet6
	}
	// While queries arrive one after the other, the next one is often there already: a raw system call then saves the
	// Go scheduler the work for a call that may block.
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

// query returns a datagram that has been read, and its source. The next read overwrites it.
func (b *batch) query(i int) ([]byte, netip.AddrPort) {
	return b.bufs[i][:b.in[i].size], addrPort(&b.peers[i])
}

// detachBuffer returns the buffer of a datagram that outlives the batch. The caller returns it to queryBuffers.
func (b *batch) detachBuffer(i int) *[maxQuery]byte {
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

// replyBuffer is where the next answer can be written.
func (b *batch) replyBuffer() []byte {
	if b.queued == batchSize {
		b.flush()
	}
	return b.replies[b.queued][:0]
}

// add queues an answer for flush, which must have room for it. The answer must not change until flush.
func (b *batch) add(answer []byte, to netip.AddrPort) {
	n := b.queued
	b.outParts[n].Base = &answer[0]
	b.outParts[n].SetLen(len(answer))
	b.out[n].header.Namelen = putAddrPort(&b.outPeers[n], to)
	b.queued++
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

// flush sends the answers without blocking. An answer that cannot be sent is lost like any datagram, and the client
// asks again. Blocking would let one box that reads no answers fill the socket's queue and delay the answers to all
// others.
func (b *batch) flush() {
	for sent := 0; sent < b.queued; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(b.socket.fd), uintptr(unsafe.Pointer(&b.out[sent])), uintptr(b.queued-sent), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			sent += int(n)
		case unix.EINTR:
		default:
			sent++ // the first of them could not be sent
		}
	}
	b.queued = 0
}
