package h2c

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/h2/upstream"
)

// ErrOther is an application that does not speak HTTP/2.
var ErrOther = errors.New("the application does not speak HTTP/2 without TLS")

const (
	// Window is what an application may send ahead of what is read of a response.
	Window = 64 << 10

	idleTime  = 90 * time.Second
	idleEach  = 32          // connections kept for one key
	otherTime = time.Minute // before an application is asked again whether it speaks HTTP/2
)

// Dial connects to an application.
type Dial func(ctx context.Context) (net.Conn, error)

// Pool has the connections to applications, by keys of which each stands for one port of one box. Set its fields before its
// first use. Safe for concurrent use.
type Pool[K comparable] struct {
	DialTimeout time.Duration // for connecting; finding out what an application speaks may take probeTime more
	Idle        int           // connections kept without a request

	mu    sync.Mutex
	ports map[K]*port
	idle  int
}

// port is one port of a box, while there is a connection or something to remember.
type port struct {
	conns   []*shared
	dialing *attempt  // in progress; nil: there is none
	speaks  bool      // it was found to speak HTTP/2
	other   time.Time // until then it is known not to
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
// asked once, and the error is ErrOther if it does not. gone tells why nobody waits for the request any more, if so: it is
// asked now and then. dial may be called for other requests too, and must not depend on this one.
func (p *Pool[K]) Open(ctx context.Context, key K, find bool, dial Dial, gone func() error) (net.Conn, error) {
	s, err := p.acquireConn(ctx, key, find, dial, gone)
	if err != nil {
		return nil, err
	}
	c := &conn{shared: s}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c, nil
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
	if at != nil && len(at.conns) == 0 && at.dialing == nil && !time.Now().Before(at.other) {
		delete(p.ports, key)
	}
}

// reserve returns an open connection, or the attempt that the request waits for from now on.
func (p *Pool[K]) reserve(key K, find bool, dial Dial) (*shared, *attempt, error) {
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
	if at.dialing == nil {
		at.dialing = p.beginLocked(key, find, dial)
	}
	at.dialing.waiters++
	return nil, at.dialing, nil
}

func (p *Pool[K]) useLocked(s *shared) {
	s.users++
	if s.rest != nil {
		s.rest.Stop()
		s.rest = nil
		p.idle--
	}
}

// releaseConn ends the use of a connection.
func (p *Pool[K]) releaseConn(key K, s *shared, used bool) {
	if !used {
		s.conn.Release()
	}
	p.mu.Lock()
	full := p.restLocked(key, s)
	p.tidyLocked(key)
	p.mu.Unlock()
	if full {
		s.conn.Close()
	}
}

// restLocked ends a use of a connection, and reports whether it is to be closed, since nobody uses it and it cannot be kept. If
// it is kept, it is for a while.
func (p *Pool[K]) restLocked(key K, s *shared) (full bool) {
	if s.users--; s.users > 0 || s.gone {
		return false
	}
	at := p.portLocked(key)
	if p.idle >= p.Idle || at.resting() >= idleEach || !s.admits() {
		p.forgetLocked(at, s)
		return true
	}
	p.idle++
	s.rest = time.AfterFunc(idleTime, func() { p.closeIdle(func(o *shared) bool { return o == s }) })
	return false
}

// resting is how many connections are kept without a request.
func (at *port) resting() (n int) {
	for _, s := range at.conns {
		if s.rest != nil {
			n++
		}
	}
	return n
}

// admits reports whether a connection that nobody uses takes a request: a server may allow none.
func (s *shared) admits() bool {
	if !s.conn.Reserve() {
		return false
	}
	s.conn.Release()
	return true
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

// ResetCode returns the code with which an application has reset the request that failed with err, if that can be told to the
// visitor.
func ResetCode(err error) (http2.ErrCode, bool) { return upstream.ResetCode(err) }
