package dns

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

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
	v := r.usages.admit(r.boxAt(from.Addr()), now)
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
	from netip.AddrPort
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
