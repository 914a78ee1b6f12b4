package tunnel

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/proxy/contain"
	"boxgate/proxy/socket"
)

// Counters are what a tunnel counts while it is open.
type Counters struct {
	In    *atomic.Int64 // bytes that the client took
	Out   *atomic.Int64 // bytes that the server took
	Pipes *atomic.Int64 // pipes that tunnels of this client's box hold; the box may have a quarter of all
}

// Splice passes bytes both ways until both sides have ended, one of them has reset, or neither has sent anything for
// the idle timeout. The kernel moves the bytes (splice(2)): both must be bare sockets. An idle tunnel holds these two and
// no other descriptor. When it returns both are closed. The error is nil after an orderly end.
func (p *Pool) Splice(client, upstream *net.TCPConn, count Counters, box policy.BoxID) error {
	s := &splicing{
		began: time.Now(), idle: p.idle, log: p.log, pipes: &p.pipes, held: count.Pipes, box: box,
		client: client, upstream: upstream,
	}
	var both sync.WaitGroup
	both.Go(func() { s.guard(func() error { return s.copy(client, upstream, count.In) }) })
	s.guard(func() error { return s.copy(upstream, client, count.Out) })
	both.Wait()
	_ = client.Close()
	_ = upstream.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// splicing is one tunnel.
type splicing struct {
	idle             time.Duration
	log              *zap.Logger
	pipes            *pipePool
	held             *atomic.Int64 // pipes that the box has
	box              policy.BoxID
	client, upstream *net.TCPConn
	began            time.Time
	progress         atomic.Int64 // when bytes last moved either way, in nanoseconds since it began: setting the clock changes nothing
	ended            atomic.Bool  // one direction has come to an orderly end

	mu  sync.Mutex
	err error // the first that ended it
}

// ErrIdle is how a tunnel ends in which neither side has said anything for the idle timeout.
var ErrIdle = errors.New("idle timeout")

// guard runs one direction. What ends it in disorder is handed to both sides as a reset, so that neither takes a part of
// a transfer for the whole.
func (s *splicing) guard(direction func() error) {
	defer func() {
		if v := recover(); v != nil {
			contain.Log(s.log, "panic in a tunnel", s.box, v)
			s.abort(contain.ErrFault)
		}
	}()
	err := direction()
	switch {
	case err == nil:
		s.ended.Store(true)
	case s.ended.Load() && (errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)):
		s.abort(nil) // a side that had said all it wanted did not wait for the other's last words
	default:
		s.abort(err)
	}
}

func (s *splicing) abort(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err // what follows from it is no cause
	}
	s.mu.Unlock()
	socket.Reset(s.client, s.upstream)
}

// gone forgives a peer that was gone before it could be told of the end.
func gone(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}
