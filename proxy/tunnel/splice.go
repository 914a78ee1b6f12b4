package tunnel

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/contain"
)

// Counters are updated while a tunnel is open.
type Counters struct {
	In    *atomic.Int64 // bytes written to the client
	Out   *atomic.Int64 // bytes written to the server
	Pipes *atomic.Int64 // pipes in use by the client's box; at most a quarter of all
}

// Splice relays bytes both ways until both sides have closed, one has reset, or the tunnel has been idle for the idle
// timeout. The kernel moves the bytes (splice(2)): both must be plain sockets. An idle tunnel uses no other
// descriptors. When it returns both are closed. The error is nil after a graceful close.
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
	held             *atomic.Int64 // pipes in use by the box
	box              policy.BoxID
	client, upstream *net.TCPConn
	began            time.Time
	progress         atomic.Int64 // when bytes last moved, in nanoseconds since the tunnel began (monotonic)
	ended            atomic.Bool  // one direction has ended gracefully

	mu  sync.Mutex
	err error // the first error
}

// ErrIdle ends a tunnel that has been idle for the idle timeout.
var ErrIdle = errors.New("idle timeout")

// guard runs one direction. An error resets both sides, so that neither takes a partial transfer for a complete one.
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
		s.abort(nil) // the side that had closed first did not wait for the other's last data
	default:
		s.abort(err)
	}
}

func (s *splicing) abort(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err // keep the first error
	}
	s.mu.Unlock()
	socket.Reset(s.client, s.upstream)
}

// gone returns nil for the error of closing towards a peer that has already disconnected.
func gone(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}
