package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// spliceChunk is how much is copied before counters and deadlines are looked after.
const spliceChunk = 1 << 20

// spliceBoth passes bytes both ways until both sides have ended, one of them has reset, or neither has sent anything for
// the idle timeout. The kernel moves the bytes (splice(2)): both must be bare sockets.
// When it returns both are closed. The error is nil after an orderly end.
func (p *Proxy) spliceBoth(live *liveConn, client, upstream *net.TCPConn) error {
	s := &splicing{began: time.Now(), idle: p.cfg.IdleTimeout, log: p.cfg.Log, client: client, upstream: upstream}
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

// copy moves one direction until its end, which it passes on, leaving the other direction open.
func (s *splicing) copy(dst, src *net.TCPConn, count *atomic.Int64) error {
	for {
		moved, err := s.chunk(dst, src)
		count.Add(moved)
		if err != nil {
			return err
		}
		if moved < spliceChunk {
			return gone(dst.CloseWrite())
		}
	}
}

// chunk moves up to spliceChunk bytes; fewer mean the end of src.
func (s *splicing) chunk(dst, src *net.TCPConn) (total int64, err error) {
	for total < spliceChunk {
		stuck, err := s.extend(dst, src)
		if err != nil {
			return total, err
		}
		n, err := dst.ReadFrom(&io.LimitedReader{R: src, N: spliceChunk - total})
		total += n
		if n > 0 {
			s.progress.Store(int64(time.Since(s.began)))
		}
		now := time.Now()
		switch {
		case err == nil:
			return total, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return total, err
		case !now.Before(stuck), now.Sub(s.moved()) >= s.idle:
			return total, errIdle
		}
	}
	return total, nil
}

// moved is when bytes last moved either way.
func (s *splicing) moved() time.Time { return s.began.Add(time.Duration(s.progress.Load())) }

// extend allows the idle timeout anew, counted from the last byte that moved in either direction. A write may take twice
// as long, until the time returned: when it times out bytes may be lost between the sockets, so the tunnel has to end,
// while a read that times out first has lost nothing and can be tried again.
func (s *splicing) extend(dst, src *net.TCPConn) (stuck time.Time, err error) {
	stuck = time.Now().Add(2 * s.idle)
	return stuck, errors.Join(
		src.SetReadDeadline(s.moved().Add(s.idle)),
		dst.SetWriteDeadline(stuck),
	)
}

// gone forgives a peer that was gone before it could be told of the end.
func gone(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}
