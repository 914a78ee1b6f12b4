package proxy

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// spliceBoth passes bytes both ways until both sides have ended, one of them has reset, or neither has sent anything for
// the idle timeout. The kernel moves the bytes (splice(2)): both must be bare sockets. An idle tunnel holds these two and
// no other descriptor.
// When it returns both are closed. The error is nil after an orderly end.
func (p *Proxy) spliceBoth(live *liveConn, who *usage, client, upstream *net.TCPConn) error {
	s := &splicing{
		began: time.Now(), idle: p.cfg.IdleTimeout, log: p.cfg.Log, pipes: &p.pipes, usage: who,
		client: client, upstream: upstream,
	}
	var both sync.WaitGroup
	both.Go(func() { s.guard(func() error { return s.copy(client, upstream, &live.in) }) })
	s.guard(func() error { return s.copy(upstream, client, &live.out) })
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
	usage            *usage // whose pipes they are
	client, upstream *net.TCPConn
	began            time.Time
	progress         atomic.Int64 // when bytes last moved either way, in nanoseconds since it began: setting the clock changes nothing
	ended            atomic.Bool  // one direction has come to an orderly end

	mu  sync.Mutex
	err error // the first that ended it
}

var (
	errIdle  = errors.New("idle timeout")
	errFault = errors.New("fault of the gateway")
)

// guard runs one direction. What ends it in disorder is handed to both sides as a reset, so that neither takes a part of
// a transfer for the whole.
func (s *splicing) guard(direction func() error) {
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("panic in a tunnel", panicKind(v), zap.Stack("stack"))
			s.abort(errFault)
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
	reset(s.client)
	reset(s.upstream)
}

// gone forgives a peer that was gone before it could be told of the end.
func gone(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}
