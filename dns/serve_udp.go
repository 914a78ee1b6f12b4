package dns

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/policy"
)

// maxQuery is the size of the largest query. A longer one is truncated, and so malformed.
const maxQuery = 4096

// ServeUDP answers the queries that arrive on pc, which it closes, until ctx ends; then it returns nil once the queries
// in flight are answered. pc is a *net.UDPConn bound to the address that boxes ask, so replies leave from it.
func (s *Server) ServeUDP(ctx context.Context, pc net.PacketConn) error {
	defer s.usages.flush()
	sock, err := takeOver(pc)
	if err != nil {
		return err
	}
	defer func() { _ = sock.close() }()
	sock.enlarge()
	r := &reader{Server: s, socket: sock, batch: newBatch(sock)}
	defer r.answering.Wait()
	defer context.AfterFunc(ctx, sock.interrupt)()
	for {
		n, err := r.batch.read()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.pause(ctx, "cannot read DNS queries", err)
			continue
		}
		now := time.Now()
		for i := range n {
			r.take(ctx, i, now)
		}
		r.batch.flush()
	}
}

var queryBuffers = sync.Pool{New: func() any { return new([maxQuery]byte) }}

// reader answers the queries of one socket.
type reader struct {
	*Server
	socket    *socket
	batch     *batch
	desk      desk
	answering sync.WaitGroup
}

// take answers a query of the batch now, or starts a goroutine for it. What is not admitted is refused now: one box cannot
// start goroutines without bound. In a flood, most is dropped without an answer, so that the queries of other boxes, which
// arrive on the same socket, are not lost.
func (r *reader) take(ctx context.Context, i int, now time.Time) {
	wire, from := r.batch.query(i)
	v := r.usages.enter(r.boxAt(from.Addr()), now)
	if !v.admitted && !v.usage.answers.AllowN(now, 1) {
		r.drop(v)
		return
	}
	out, ok := r.answerDirectly(ctx, v, policy.UDP, wire, &r.desk, r.batch.room())
	if !ok && v.admitted {
		buf := r.batch.take(i)
		r.answering.Go(func() {
			defer queryBuffers.Put(buf)
			defer v.leave()
			if out := r.answer(ctx, v, policy.UDP, wire); out != nil {
				r.socket.send(out, from)
			}
		})
		return
	}
	defer v.leave()
	if !ok {
		out = r.answer(ctx, v, policy.UDP, wire)
	}
	if out != nil {
		r.batch.add(i, out)
	}
}

// drop counts a query that gets no answer.
func (s *Server) drop(v visit) {
	defer v.leave()
	ev := audit.Event{Stage: policy.StageDNS, Protocol: policy.UDP, Action: audit.ActionRefuse, Reason: policy.ReasonUnknownBox}
	if v.box != nil {
		ev.Box, ev.Reason = v.box.ID, policy.ReasonLimit
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

// pause waits after an error that may be temporary, such as having no file descriptors left.
func (s *Server) pause(ctx context.Context, what string, err error) {
	s.log.Warn(what, zap.Error(err))
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
}
