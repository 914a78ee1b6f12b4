package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
)

// maxQuery is the size of the largest query. A longer one is truncated, and so malformed.
const maxQuery = 4096

// ServeUDP answers the queries that arrive on pc, which it closes, until ctx ends; then it returns nil once the queries
// in flight are answered. pc is bound to the address that boxes ask, so replies leave from it.
func (s *Server) ServeUDP(ctx context.Context, pc net.PacketConn) error {
	var answering sync.WaitGroup
	defer s.usages.flush()
	defer pc.Close()
	s.enlarge(pc)
	defer answering.Wait()
	defer context.AfterFunc(ctx, func() { _ = pc.SetReadDeadline(time.Unix(1, 0)) })() // fails if pc is closed, which ends ReadFrom as well
	for {
		buf := queryBuffers.Get().(*[maxQuery]byte)
		n, from, err := pc.ReadFrom(buf[:])
		if err != nil {
			queryBuffers.Put(buf)
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			s.pause(ctx, "cannot read a DNS query", err)
			continue
		}
		// What is not admitted is refused here: one box cannot start goroutines without bound. In a flood, most is
		// dropped without an answer, so that the queries of other boxes, which arrive on the same socket, are not lost.
		v := s.usages.enter(s.boxAt(from))
		if !v.admitted {
			if v.usage.answers.Allow() {
				s.answerUDP(ctx, pc, v, buf, n, from)
			} else {
				queryBuffers.Put(buf)
				s.drop(v)
			}
			continue
		}
		answering.Go(func() { s.answerUDP(ctx, pc, v, buf, n, from) })
	}
}

var queryBuffers = sync.Pool{New: func() any { return new([maxQuery]byte) }}

func (s *Server) answerUDP(ctx context.Context, pc net.PacketConn, v *visit, buf *[maxQuery]byte, n int, to net.Addr) {
	defer v.leave()
	defer queryBuffers.Put(buf)
	if out := s.answer(ctx, v, policy.UDP, buf[:n]); out != nil {
		_, _ = pc.WriteTo(out, to) // lost like any datagram if it fails: the client asks again
	}
}

// drop counts a query that gets no answer.
func (s *Server) drop(v *visit) {
	defer v.leave()
	ev := audit.Event{Stage: policy.StageDNS, Protocol: policy.UDP, Action: audit.ActionRefuse, Reason: policy.ReasonUnknownBox}
	if v.box != nil {
		ev.Box, ev.Reason = v.box.ID, policy.ReasonLimit
	}
	s.record(v, ev)
}

// receiveBuffer holds what arrives while the server is not scheduled.
const receiveBuffer = 4 << 20

// enlarge gives the socket a receive buffer beyond the system's limit, which takes privilege, or up to that limit.
func (s *Server) enlarge(pc net.PacketConn) {
	c, ok := pc.(*net.UDPConn)
	if !ok {
		return
	}
	forced := errors.ErrUnsupported
	if raw, err := c.SyscallConn(); err == nil {
		err = raw.Control(func(fd uintptr) {
			forced = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		})
		forced = errors.Join(forced, err)
	}
	if forced != nil {
		_ = c.SetReadBuffer(receiveBuffer) // as it is otherwise
	}
}

// boxAt returns the box at a socket address, or nil.
func (s *Server) boxAt(a net.Addr) *policy.Box {
	var ip netip.Addr
	switch a := a.(type) {
	case *net.UDPAddr:
		ip = a.AddrPort().Addr()
	case *net.TCPAddr:
		ip = a.AddrPort().Addr()
	}
	if ip = ip.Unmap().WithZone(""); !ip.IsValid() {
		return nil
	}
	return s.boxes.BoxByAddr(ip)
}

// pause waits after an error that may be temporary, such as having no file descriptors left.
func (s *Server) pause(ctx context.Context, what string, err error) {
	s.log.Warn(what, zap.Error(err))
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
}
