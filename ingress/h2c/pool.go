package h2c

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"

	"boxgate/relay/h2/upstream"
	"boxgate/relay/pool"
)

// ErrOther reports an application that does not speak HTTP/2.
var ErrOther = pool.ErrPlain

const (
	// Window is the number of bytes of a response that an application may send before they are read.
	Window = 64 << 10

	idleTime  = 90 * time.Second
	idleEach  = 32          // connections kept for one key
	otherTime = time.Minute // before an application is probed for HTTP/2 again
)

// Dial connects to an application.
type Dial func(ctx context.Context) (net.Conn, error)

// Pool keeps connections to applications. Each key is one port of one box. Create it with [NewPool]. Safe for concurrent use.
type Pool[K comparable] struct {
	conns       pool.Pool[K, struct{}]
	dialTimeout time.Duration
}

// NewPool returns a pool that keeps at most idle connections without a request. dialTimeout is for connecting; probing for HTTP/2 may
// take probeTime more. owner returns the box of a key; it may be nil, see [pool.Pool]. panicked, if not nil, is called for panics while
// connecting, on their stack.
func NewPool[K comparable](dialTimeout time.Duration, idle int, owner func(K) string, panicked func(K, any)) *Pool[K] {
	p := &Pool[K]{dialTimeout: dialTimeout}
	p.conns.Owner, p.conns.Panicked = owner, panicked
	p.conns.Idle, p.conns.IdleEach, p.conns.IdleTime, p.conns.Plain = idle, idleEach, idleTime, otherTime
	p.conns.Retry = func(err error) bool { return errors.Is(err, ErrOther) } // only the other request needed the probe
	return p
}

// shared is a connection that several requests share ([pool.Shared]).
type shared struct {
	*upstream.Conn
	local, remote net.Addr
	leave         func(used bool) // ends a request's use of the connection
}

// Usable implements [pool.Conn].
func (s *shared) Usable(struct{}) bool { return true }

// Fit implements [pool.Conn]: a server may allow no streams at all.
func (s *shared) Fit() bool {
	if !s.Reserve() {
		return false
	}
	s.Release()
	return true
}

// Cost implements [pool.Conn].
func (s *shared) Cost(bool) int { return 0 }

// HangUp implements [pool.Conn].
func (s *shared) HangUp() { s.Close() }

// Cancel implements [pool.Shared].
func (s *shared) Cancel() { s.Release() }

// Open returns a connection for one request. If find is set, the application is first probed for HTTP/2, once for all
// requests, and the error is ErrOther if it does not speak it. gone is called every second and returns an error if the visitor
// no longer waits. dial may be called for other requests too, so it must not depend on this one.
func (p *Pool[K]) Open(ctx context.Context, key K, find bool, dial Dial, gone func() error) (net.Conn, error) {
	up, err := p.open(ctx, key, find, dial, gone)
	if err != nil {
		return nil, err
	}
	s, ok := up.(*shared)
	if !ok {
		panic("h2c: a foreign value in a pool")
	}
	c := &conn{up: s.Conn, leave: s.leave, local: s.local, remote: s.remote}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c, nil
}

// open returns an open or a new connection with a stream reserved on it.
func (p *Pool[K]) open(ctx context.Context, key K, find bool, dial Dial, gone func() error) (pool.Conn[struct{}], error) {
	if up, _ := p.conns.Share(key, struct{}{}); up != nil {
		return up, nil
	}
	o := pool.Order[K, struct{}]{By: func() (by struct{}) { return by }, Insists: !find, Patience: p.dialTimeout, Gone: gone}
	if find {
		o.Patience += probeTime
	}
	o.Dial = func(ctx context.Context, pl *pool.Place[K, struct{}], speaks bool) (pool.Conn[struct{}], error) {
		if find && !speaks {
			if err := probe(ctx, dial); err != nil {
				return nil, err
			}
		}
		return connect(ctx, pl, dial)
	}
	return p.conns.Get(ctx, key, &o)
}

// connect makes a connection with a stream reserved on it.
func connect[K comparable](ctx context.Context, pl *pool.Place[K, struct{}], dial Dial) (pool.Conn[struct{}], error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &shared{
		Conn: upstream.NewWindow(conn, pl.Release, Window), local: conn.LocalAddr(), remote: conn.RemoteAddr(), leave: pl.Leave,
	}
	if !s.Reserve() {
		s.Close()
		return nil, net.ErrClosed
	}
	return s, nil
}

// probe connects, and returns ErrOther if the application does not speak HTTP/2.
func probe(ctx context.Context, dial Dial) error {
	conn, err := dial(ctx)
	if err != nil {
		return err
	}
	if !speaks(ctx, conn) {
		err = ErrOther
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Refused must be called when a port refuses a connection. It forgets the probe, as the application has gone.
func (p *Pool[K]) Refused(key K) { p.conns.Forget(key) }

// CloseIdle closes unused connections, and forgets ports without any.
func (p *Pool[K]) CloseIdle() { p.conns.CloseIdle(0) }

// Unprocessed reports whether the application has not processed the request that failed with err, so that it may be sent
// again.
func Unprocessed(err error) bool { return upstream.Unprocessed(err) }

// ResetCode returns the code of the application's reset if the request failed by one that may be passed to the visitor.
func ResetCode(err error) (http2.ErrCode, bool) { return upstream.ResetCode(err) }

// probeTime is how long an application may take to show that it speaks HTTP/2.
const probeTime = 5 * time.Second

// speaks reports whether a server answers the client preface of HTTP/2 with SETTINGS, as it must (RFC 9113, 3.4). It closes
// the connection.
func speaks(ctx context.Context, conn net.Conn) bool {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_ = conn.SetDeadline(time.Now().Add(probeTime))
	var hello bytes.Buffer
	hello.WriteString(http2.ClientPreface)
	_ = http2.NewFramer(&hello, nil).WriteSettings()
	if _, err := conn.Write(hello.Bytes()); err != nil {
		return false
	}
	var head [9]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return false
	}
	f, err := http2.ReadFrameHeader(bytes.NewReader(head[:]))
	return err == nil && f.Type == http2.FrameSettings && !f.Flags.Has(http2.FlagSettingsAck) && f.StreamID == 0 && f.Length%6 == 0
}
