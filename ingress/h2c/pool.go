package h2c

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"boxgate/relay/h2/upstream"
)

// ErrOther reports an application that does not speak HTTP/2.
var ErrOther = errors.New("the application does not speak HTTP/2 without TLS")

const (
	// Window is the number of bytes of a response that an application may send before they are read.
	Window = 64 << 10

	idleTime  = 90 * time.Second
	idleEach  = 32          // connections kept for one key
	otherTime = time.Minute // before an application is probed for HTTP/2 again
)

// Dial connects to an application.
type Dial func(ctx context.Context) (net.Conn, error)

// Pool keeps connections to applications. Each key is one port of one box. Set the fields before the first use. Safe for
// concurrent use.
type Pool[K comparable] struct {
	DialTimeout time.Duration // for connecting; probing for HTTP/2 may take probeTime more
	Idle        int           // most connections kept without a request

	mu    sync.Mutex
	ports map[K]*port
	idle  int
}

// port is one port of a box, while it has connections or a remembered probe.
type port struct {
	conns   []*shared
	dialing *attempt  // in progress, or nil
	speaks  bool      // a probe found that it speaks HTTP/2
	other   time.Time // until then a probe's result is that it does not
}

// shared is a connection that several requests share.
type shared struct {
	conn          *upstream.Conn
	local, remote net.Addr
	leave         func(used bool) // ends a request's use of the connection

	users int         // guarded by the pool's mu
	rest  *time.Timer // closes the connection when it has been idle for idleTime; nil while it is in use
	gone  bool        // the connection has ended
}

// Open returns a connection for one request. If find is set, the application is first probed for HTTP/2, once for all
// requests, and the error is ErrOther if it does not speak it. gone is called every second and returns an error if the visitor
// no longer waits. dial may be called for other requests too, so it must not depend on this one.
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

// tidyLocked forgets a port without connections or remembered probe. A successful probe is forgotten with the application's
// last connection, as another application may use the port next.
func (p *Pool[K]) tidyLocked(key K) {
	at := p.ports[key]
	if at != nil && len(at.conns) == 0 && at.dialing == nil && !time.Now().Before(at.other) {
		delete(p.ports, key)
	}
}

// reserve returns an open connection, or the attempt for which the request must wait.
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

// restLocked ends a use of a connection. An unused connection is kept for idleTime; if it cannot be kept, restLocked reports
// true and the caller closes it.
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

// resting returns the number of connections kept without a request.
func (at *port) resting() (n int) {
	for _, s := range at.conns {
		if s.rest != nil {
			n++
		}
	}
	return n
}

// admits reports whether an unused connection takes a request: a server may allow no streams at all.
func (s *shared) admits() bool {
	if !s.conn.Reserve() {
		return false
	}
	s.conn.Release()
	return true
}

// forgetLocked stops offering a connection to requests.
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

// Refused must be called when a port refuses a connection. It forgets the probe, as the application has gone.
func (p *Pool[K]) Refused(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.ports[key]; at != nil {
		at.speaks, at.other = false, time.Time{}
		p.tidyLocked(key)
	}
}

// CloseIdle closes unused connections, and forgets ports without any.
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

// Unprocessed reports whether the application has not processed the request that failed with err, so that it may be sent
// again.
func Unprocessed(err error) bool { return upstream.Unprocessed(err) }

// ResetCode returns the code of the application's reset if the request failed by one that may be passed to the visitor.
func ResetCode(err error) (http2.ErrCode, bool) { return upstream.ResetCode(err) }
