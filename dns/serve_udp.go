package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/policy"
)

// maxQuery is the largest query read. Anything longer is cut there, and malformed.
const maxQuery = 4096

// ServeUDP answers the queries that arrive on pc, which it closes, until ctx ends; then it returns nil once the queries under
// way are answered. pc is bound to the address that boxes ask, so replies leave from it.
func (s *Server) ServeUDP(ctx context.Context, pc net.PacketConn) error {
	var answering sync.WaitGroup
	defer pc.Close()
	defer answering.Wait()
	defer context.AfterFunc(ctx, func() { _ = pc.SetReadDeadline(time.Unix(1, 0)) })() // fails if pc is closed: the same end
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
		// What is not admitted is refused here: one box cannot make goroutines without bound.
		v := s.guests.enter(s.boxAt(from))
		if !v.admitted {
			s.answerUDP(ctx, pc, v, buf, n, from)
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

// pause lets an error that may pass (file descriptors used up) pass.
func (s *Server) pause(ctx context.Context, what string, err error) {
	s.log.Warn(what, zap.Error(err))
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
}
