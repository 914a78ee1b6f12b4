package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// maxQuery is the maximum size of a query in bytes. A longer one is truncated, and so malformed.
const maxQuery = 4096

// ServeUDP answers the queries that arrive on pc until ctx ends or the server retires, then returns nil once the
// queries in flight are answered. It closes pc, which is a *net.UDPConn bound to the address that boxes query, so that
// replies leave from it.
func (s *Server) ServeUDP(ctx context.Context, pc net.PacketConn) error {
	s.readLoops.Add(1)
	defer s.readLoops.Done()
	defer s.usages.flush()
	sock, err := newSocket(pc)
	if err != nil {
		return err
	}
	defer func() { _ = sock.close() }()
	sock.enlargeBuffer()
	r := &reader{Server: s, socket: sock, batch: newBatch(sock)}
	defer r.answering.Wait()
	defer s.trackAccepting()()
	defer sock.release()
	defer r.batch.flush()
	defer r.closeSockets(ctx)
	defer context.AfterFunc(ctx, sock.stopReading)()
	defer context.AfterFunc(s.retiring, sock.stopReading)()
	for {
		err := r.serve(ctx)
		if ctx.Err() != nil || s.retiring.Err() != nil {
			return nil
		}
		if err != nil {
			s.pause(ctx, "cannot read DNS queries", err)
		}
	}
}

var queryBuffers = sync.Pool{New: func() any { return new([maxQuery]byte) }}

// reader answers the queries of one socket.
type reader struct {
	*Server
	socket    *socket
	batch     *batch
	scratch   scratch
	questions openQuestions
	retryOpen time.Time // when openSockets may try again
	answering sync.WaitGroup
}

// serve waits for queries and for due answers from upstream, and answers the queries it can.
func (r *reader) serve(ctx context.Context) error {
	defer r.batch.flush()
	flags := uintptr(0)
	if r.questions.sockets != nil {
		if readable, err := r.awaitAnswer(ctx); err != nil || !readable {
			return err
		}
		flags = unix.MSG_DONTWAIT
	}
	n, err := r.batch.read(flags)
	if err != nil {
		return err
	}
	now := time.Now()
	for i := range n {
		r.handleQuery(ctx, i, now)
	}
	return nil
}

// handleQuery answers a query of the batch, asks upstream for it, or starts a goroutine for it. A query that is not
// admitted is refused here, so one box cannot start goroutines without bound. In a flood most of them are dropped
// without an answer, so that queries of other boxes on the same socket are not lost.
func (r *reader) handleQuery(ctx context.Context, i int, now time.Time) {
	wire, from := r.batch.query(i)
	v := r.usages.admit(r.boxAt(from.from.Addr()), now)
	if !v.admitted && !v.usage.answers.AllowAt(now) {
		r.drop(v)
		return
	}
	out, ok := r.answerDirectly(ctx, v, policy.UDP, wire, &r.scratch, r.batch.replyBuffer())
	if !ok && v.admitted {
		w := pendingQuery{visit: v, wire: wire, from: from, buf: r.batch.detachBuffer(i)}
		if !r.askUpstream(w, r.scratch.missing) {
			r.answerInBackground(ctx, w)
		}
		return
	}
	defer v.release()
	if !ok {
		out = r.answer(ctx, v, policy.UDP, wire)
	}
	if out != nil {
		r.batch.add(out, from)
	}
}

// pendingQuery is an unanswered query.
type pendingQuery struct {
	visit
	wire []byte
	from peer
	buf  *[maxQuery]byte // contains wire
	done func()          // called at the end; may be nil
}

func (w *pendingQuery) release() {
	if w.done != nil {
		w.done()
	}
	w.visit.release()
	queryBuffers.Put(w.buf)
}

// answerInBackground answers a query on the general path, in a new goroutine.
func (r *reader) answerInBackground(ctx context.Context, w pendingQuery) {
	r.answering.Go(func() {
		defer w.release()
		if out := r.answer(ctx, w.visit, policy.UDP, w.wire); out != nil {
			r.socket.send(out, w.from)
		}
	})
}

// drop counts a query that gets no answer.
func (s *Server) drop(v visit) {
	defer v.release()
	ev := audit.Event{Stage: policy.StageDNS, Protocol: policy.UDP, Action: audit.ActionRefuse, Reason: name.ReasonUnknownBox}
	if v.box != nil {
		ev.Box, ev.Reason = v.box.ID, name.ReasonLimit
	}
	s.record(v.usage, ev)
}

// boxAt returns the box at an address, or nil.
func (s *Server) boxAt(a netip.Addr) *policy.Box {
	if a = a.Unmap().WithZone(""); !a.IsValid() {
		return nil
	}
	return s.boxes.BoxByAddr(a)
}

// pause waits after an error that may be temporary, such as running out of file descriptors.
func (s *Server) pause(ctx context.Context, what string, err error) {
	s.log.Warn(what, zap.Error(err))
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
}

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
	inInfo   [batchSize]info
	bufs     [batchSize]*[maxQuery]byte // nil: handed out by detachBuffer, or not needed so far
	ready    int                        // entries that the next read may fill; a socket without queries needs one
	received int

	out      [batchSize]datagram
	outParts [batchSize]unix.Iovec
	outPeers [batchSize]unix.RawSockaddrInet6
	outInfo  [batchSize]info
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
	b.prepare(0)
	b.ready = 1
	return b
}

// prepare makes an entry ready for a read.
func (b *batch) prepare(i int) {
	if b.bufs[i] == nil {
		b.bufs[i] = queryBuffers.Get().(*[maxQuery]byte)
		b.inParts[i].Base = &b.bufs[i][0]
		b.inParts[i].SetLen(maxQuery)
	}
	b.in[i].header.Namelen = unix.SizeofSockaddrInet6
	if b.socket.forAny {
		b.in[i].header.Control = (*byte)(unsafe.Pointer(&b.inInfo[i]))
		b.in[i].header.SetControllen(infoSize)
	}
}

// read waits for datagrams and returns their number. With [unix.MSG_DONTWAIT] it does not wait.
func (b *batch) read(flags uintptr) (int, error) {
	for i := range b.received { // the entries that the last read used
		b.prepare(i)
	}
	if b.received == b.ready && b.ready < batchSize { // more datagrams may have been waiting
		for i := b.ready; i < min(2*b.ready, batchSize); i++ {
			b.prepare(i)
		}
		b.ready = min(2*b.ready, batchSize)
	}
	size := uintptr(b.ready)
	// While queries arrive one after the other, the next one is often there already: a raw system call then saves the
	// Go scheduler the work for a call that may block.
	errno := unix.EAGAIN
	var n uintptr
	if b.received > 1 || flags&unix.MSG_DONTWAIT != 0 {
		n, _, errno = unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(b.socket.fd), uintptr(unsafe.Pointer(&b.in[0])), size, unix.MSG_DONTWAIT, 0, 0)
	}
	b.received = 0
	if errno == unix.EAGAIN && flags&unix.MSG_DONTWAIT == 0 {
		n, _, errno = unix.Syscall6(unix.SYS_RECVMMSG, uintptr(b.socket.fd), uintptr(unsafe.Pointer(&b.in[0])), size, unix.MSG_WAITFORONE, 0, 0)
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
func (b *batch) query(i int) ([]byte, peer) {
	p := peer{from: addrPort(&b.peers[i])}
	if b.socket.forAny {
		p.asked = b.inInfo[i].asked(b.in[i].header.Controllen)
	}
	return b.bufs[i][:b.in[i].size], p
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
func (b *batch) add(answer []byte, to peer) {
	n := b.queued
	b.outParts[n].Base = &answer[0]
	b.outParts[n].SetLen(len(answer))
	b.out[n].header.Namelen = putAddrPort(&b.outPeers[n], to.from)
	b.out[n].header.Control = nil
	b.out[n].header.SetControllen(0)
	if to.asked.IsValid() {
		b.out[n].header.Control = (*byte)(unsafe.Pointer(&b.outInfo[n]))
		b.out[n].header.SetControllen(b.outInfo[n].put(to.asked))
	}
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

// socket is a UDP socket outside the runtime's poller. The poller wakes for every datagram that arrives or leaves, even
// if no goroutine waits for it, which costs more than answering the queries. A read blocks a thread instead.
type socket struct {
	fd      int
	forAny  bool     // it receives queries for any server
	threads *os.File // /proc/self/task, opened early: stopReading may run without a free file descriptor

	mu       sync.Mutex
	released bool
}

// stopTimeout is how long a read may block once stopReading has been called.
const stopTimeout = 20 * time.Millisecond

// stopReading makes reads return soon, whether or not anything arrives, and leaves the socket usable for the process
// that receives it, now or from the service manager ([ResumeSocket]). The kernel applies a new receive timeout only when a
// read begins, so stopReading restarts a blocked read by a signal to its thread. It is SIGURG, which the runtime uses
// to preempt goroutines and tolerates from other senders. stopReading returns once the socket has no reader; until then
// it repeats the signals, because the kernel may omit a thread from the directory while others exit.
func (s *socket) stopReading() {
	for s.interruptReads() {
		time.Sleep(stopTimeout)
	}
}

// interruptReads restarts a blocked read, and reports whether a read may still be in progress.
func (s *socket) interruptReads() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return false
	}
	limit := unix.NsecToTimeval(stopTimeout.Nanoseconds())
	_ = unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	_, _ = s.threads.Seek(0, io.SeekStart)
	ids, _ := s.threads.Readdirnames(-1)
	for _, name := range ids {
		if id, err := strconv.Atoi(name); err == nil {
			_ = unix.Tgkill(unix.Getpid(), id, unix.SIGURG)
		}
	}
	return true
}

// ResumeSocket resets a socket that another process has served and left.
func ResumeSocket(pc syscall.Conn) error {
	return control(pc, func(fd int) error {
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{})
	})
}

// newSocket duplicates the socket of pc and closes pc.
func newSocket(pc net.PacketConn) (*socket, error) {
	defer pc.Close()
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		return nil, fmt.Errorf("dns: cannot serve queries on a %T", pc)
	}
	threads, err := os.Open("/proc/self/task")
	if err != nil {
		return nil, fmt.Errorf("dns: list the threads: %w", err)
	}
	s := &socket{threads: threads}
	err = control(conn, func(fd int) (err error) {
		s.forAny = reportsAsked(fd)
		s.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dns: take over a socket: %w", err), threads.Close())
	}
	if err := unix.SetNonblock(s.fd, false); err != nil {
		return nil, errors.Join(fmt.Errorf("dns: make a socket block: %w", err), s.close())
	}
	return s, nil
}

// release makes stopReading a no-op from now on, because another process may be reading the socket. Answers may still be
// sent.
func (s *socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
}

func (s *socket) close() error {
	s.release()
	return errors.Join(unix.Close(s.fd), s.threads.Close())
}

// send sends a datagram. On failure the datagram is lost like any other.
func (s *socket) send(wire []byte, to peer) {
	var control info
	var n int
	if to.asked.IsValid() {
		n = control.put(to.asked)
	}
	_, _ = unix.SendmsgN(s.fd, wire, control.bytes(n), sockaddr(to.from), unix.MSG_DONTWAIT)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// receiveBuffer is the receive buffer in bytes, for datagrams that arrive while the server is not scheduled.
const receiveBuffer = 4 << 20

// enlargeBuffer sets the receive buffer beyond the system's limit if the process is privileged, else up to that limit.
func (s *socket) enlargeBuffer() {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // the default remains if this fails
	}
}

// socketsPerAddress is the number of sockets that share one address. More sockets use more processors, and fewer boxes
// share each of them.
const socketsPerAddress = 8

// ListenUDP opens the sockets that together receive the packets to one address. All queries of a box arrive on the same
// socket, chosen by the box's address, so a box that fills its socket's queue affects only the boxes that share that
// socket. Serve each with [Server.ServeUDP].
func ListenUDP(ctx context.Context, lc net.ListenConfig, address netip.AddrPort) ([]net.PacketConn, error) {
	// The first socket is bound without SO_REUSEPORT, so that binding fails if another program uses the address.
	first, err := lc.ListenPacket(ctx, "udp", address.String())
	if err != nil {
		return nil, err
	}
	opened := []net.PacketConn{first}
	lc.Control = withReusePort(lc.Control)
	err = control(first.(*net.UDPConn), setReusePort)
	for err == nil && len(opened) < socketsPerAddress {
		var pc net.PacketConn
		if pc, err = lc.ListenPacket(ctx, "udp", first.LocalAddr().String()); err == nil {
			opened = append(opened, pc)
		}
	}
	if err == nil {
		err = control(first.(*net.UDPConn), func(fd int) error { return balanceBySource(fd, address.Addr().Is4()) })
	}
	if err != nil {
		for _, pc := range opened {
			pc.Close()
		}
		return nil, fmt.Errorf("share %s among sockets: %w", address, err)
	}
	return opened, nil
}

// setReusePort lets other sockets of this user bind to the same address.
func setReusePort(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }

// withReusePort returns a control function that calls setReusePort, then also if it is not nil.
func withReusePort(also func(network, address string, c syscall.RawConn) error) func(network, address string, c syscall.RawConn) error {
	return func(network, address string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) { err = setReusePort(int(fd)) })
		if err = errors.Join(ctlErr, err); err == nil && also != nil {
			err = also(network, address, c)
		}
		return err
	}
}

// Offsets of the last word of a packet's source address. SKF_NET_OFF makes the kernel count from the network header;
// without it the program sees only the payload.
const (
	netOffset = 0xfff00000 // SKF_NET_OFF, linux/filter.h
	sourceV4  = netOffset + 12
	sourceV6  = netOffset + 8 + 12
)

// balanceBySource makes the kernel choose the socket by the last word of the source address. Boxes have consecutive
// addresses.
func balanceBySource(fd int, v4 bool) error {
	at := uint32(sourceV6)
	if v4 {
		at = sourceV4
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: socketsPerAddress},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// control calls f with the descriptor of a socket.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(ctlErr, err)
}
