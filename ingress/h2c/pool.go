package h2c

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"boxgate/internal/h2/upstream"
)

var (
	// ErrOther is an application that does not speak HTTP/2.
	ErrOther = errors.New("the application does not speak HTTP/2 without TLS")
	// ErrFull refuses a request since responses may use no more memory.
	ErrFull = errors.New("too much of responses is waiting to be read")
)

const (
	// Window is what an application may send ahead of what is read of a response.
	Window = 64 << 10

	idleTime  = 90 * time.Second
	otherTime = time.Minute // before an application is asked again whether it speaks HTTP/2
)

// Dial connects to an application.
type Dial func(ctx context.Context) (net.Conn, error)

// Pool has the connections to applications, by keys of which each stands for one port of one box. Set its fields before its
// first use. Safe for concurrent use.
type Pool[K comparable] struct {
	Idle    int // connections kept without a request
	Streams int // requests at a time, and half of them of one key: each may hold Window bytes

	mu      sync.Mutex
	ports   map[K]*port
	idle    int
	streams int
}

// port is one port of a box, while there is a connection or something to remember.
type port struct {
	conns   []*shared
	dialing chan struct{} // closed when the attempt in progress has ended; nil: there is none
	speaks  bool          // it was found to speak HTTP/2
	other   time.Time     // until then it is known not to
	streams int
}

// shared is a connection that requests share.
type shared struct {
	conn          *upstream.Conn
	local, remote net.Addr
	leave         func(used bool) // ends a request's use of it

	users int         // guarded by the pool's mu
	rest  *time.Timer // closes it when it has been idle; nil while it is in use
	gone  bool        // the connection has ended
}

// Open returns a connection for one request. If find is set, it is not known whether the application speaks HTTP/2: it is
// asked once, and the error is ErrOther if it does not.
func (p *Pool[K]) Open(ctx context.Context, key K, find bool, dial Dial) (net.Conn, error) {
	if !p.enter(key) {
		return nil, ErrFull
	}
	s, err := p.take(ctx, key, find, dial)
	if err != nil {
		p.exit(key)
		return nil, err
	}
	c := &conn{shared: s}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c, nil
}

// enter counts a request.
func (p *Pool[K]) enter(key K) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.portLocked(key)
	if p.streams >= p.Streams || at.streams >= max(1, p.Streams/2) {
		p.tidyLocked(key)
		return false
	}
	p.streams++
	at.streams++
	return true
}

func (p *Pool[K]) exit(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams--
	p.portLocked(key).streams--
	p.tidyLocked(key)
}

func (p *Pool[K]) portLocked(key K) *port {
	if p.ports == nil {
		p.ports = map[K]*port{}
	}
	at := p.ports[key]
	if at == nil {
		at = &port{}
		p.ports[key] = at
	}
	return at
}

// tidyLocked forgets a port of which there is nothing to know. What was found out about the application goes with its last
// connection: it may be another one by the next.
func (p *Pool[K]) tidyLocked(key K) {
	at := p.ports[key]
	if at != nil && len(at.conns) == 0 && at.dialing == nil && at.streams == 0 && !time.Now().Before(at.other) {
		delete(p.ports, key)
	}
}

// take returns a connection with a stream reserved on it: an open one, or a new one. Requests that need a new one share the
// attempt.
func (p *Pool[K]) take(ctx context.Context, key K, find bool, dial Dial) (*shared, error) {
	for {
		s, wait, err := p.reserve(key, find)
		if s != nil || err != nil {
			return s, err
		}
		if wait == nil {
			return p.connect(ctx, key, find, dial)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// reserve returns an open connection, or what to wait for. If it returns neither, the caller connects.
func (p *Pool[K]) reserve(key K, find bool) (*shared, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.portLocked(key)
	if find && time.Now().Before(at.other) {
		return nil, nil, ErrOther
	}
	for _, s := range at.conns {
		if s.conn.Reserve() {
			p.useLocked(s)
			return s, nil, nil
		}
	}
	if at.dialing != nil {
		return nil, at.dialing, nil
	}
	at.dialing = make(chan struct{})
	return nil, nil, nil
}

func (p *Pool[K]) useLocked(s *shared) {
	s.users++
	if s.rest != nil {
		s.rest.Stop()
		s.rest = nil
		p.idle--
	}
}

// connect makes a connection, and finds out first whether it can be one if need be.
func (p *Pool[K]) connect(ctx context.Context, key K, find bool, dial Dial) (s *shared, err error) {
	speaks := false
	defer func() { p.connected(key, s, speaks, err) }()
	if find && !p.known(key) {
		if speaks, err = probe(ctx, dial); err != nil {
			return nil, err
		}
		if !speaks {
			return nil, ErrOther
		}
	}
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	made := &shared{local: conn.LocalAddr(), remote: conn.RemoteAddr(), users: 1}
	made.leave = func(used bool) { p.leave(key, made, used) }
	made.conn = upstream.NewWindow(conn, func() { p.ended(key, made) }, Window)
	if !made.conn.Reserve() {
		made.conn.Close()
		return nil, net.ErrClosed
	}
	return made, nil
}

func (p *Pool[K]) known(key K) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.portLocked(key).speaks
}

// probe connects and reports whether the application speaks HTTP/2.
func probe(ctx context.Context, dial Dial) (bool, error) {
	conn, err := dial(ctx)
	if err != nil {
		return false, err
	}
	found := speaks(ctx, conn)
	return found, ctx.Err()
}

// connected ends an attempt to connect.
func (p *Pool[K]) connected(key K, s *shared, speaks bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.portLocked(key)
	close(at.dialing)
	at.dialing = nil
	switch {
	case errors.Is(err, ErrOther):
		at.other = time.Now().Add(otherTime)
	case err != nil:
		at.speaks = false
	case !s.gone:
		at.speaks = at.speaks || speaks
		at.conns = append(at.conns, s)
	}
	p.tidyLocked(key)
}

// leave ends the use of a connection.
func (p *Pool[K]) leave(key K, s *shared, used bool) {
	if !used {
		s.conn.Release()
	}
	if p.rest(key, s) {
		s.conn.Close()
	}
	p.exit(key)
}

// rest reports whether a connection is to be closed, since nobody uses it and it cannot be kept. If it is kept, it is for a
// while.
func (p *Pool[K]) rest(key K, s *shared) (full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.users--; s.users > 0 || s.gone {
		return false
	}
	if p.idle >= p.Idle {
		p.forgetLocked(p.portLocked(key), s)
		return true
	}
	p.idle++
	s.rest = time.AfterFunc(idleTime, func() { p.closeIdle(func(o *shared) bool { return o == s }) })
	return false
}

// forgetLocked takes a connection from those that are offered to requests.
func (p *Pool[K]) forgetLocked(at *port, s *shared) {
	if s.rest != nil {
		s.rest.Stop()
		s.rest = nil
		p.idle--
	}
	if i := slices.Index(at.conns, s); i >= 0 {
		at.conns = slices.Delete(at.conns, i, i+1)
	}
	if len(at.conns) == 0 {
		at.speaks = false
	}
}

// ended forgets a connection that has been closed.
func (p *Pool[K]) ended(key K, s *shared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.gone = true
	p.forgetLocked(p.portLocked(key), s)
	p.tidyLocked(key)
}

// Refused is told that nothing listens on a port: what is known about the application is of one that has gone.
func (p *Pool[K]) Refused(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.ports[key]; at != nil {
		at.speaks, at.other = false, time.Time{}
		p.tidyLocked(key)
	}
}

// CloseIdle closes the connections that no request uses, and forgets the ports that none does.
func (p *Pool[K]) CloseIdle() {
	p.closeIdle(func(*shared) bool { return true })
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, at := range p.ports {
		at.other = time.Time{}
		p.tidyLocked(key)
	}
}

func (p *Pool[K]) closeIdle(match func(*shared) bool) {
	var old []*shared
	p.mu.Lock()
	for _, at := range p.ports {
		for _, s := range slices.Clone(at.conns) {
			if s.rest != nil && match(s) {
				p.forgetLocked(at, s)
				old = append(old, s)
			}
		}
	}
	p.mu.Unlock()
	for _, s := range old {
		s.conn.Close()
	}
}

// Unprocessed reports whether an application has not processed the request that failed with err, so that it may be sent again.
func Unprocessed(err error) bool { return upstream.Unprocessed(err) }
