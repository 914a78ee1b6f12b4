package ingress

import (
	"net"
	"sync"
	"syscall"
	"time"

	"boxgate/internal/socket"
	"boxgate/relay"
	"boxgate/relay/h1"
)

const (
	idleMax     = 256 // connections kept for one URL
	idleTime    = 90 * time.Second
	goneCheck   = time.Second // how often a read from a box checks whether its response is still expected
	sweepPeriod = 15 * time.Second
)

// upstream is one connection to a port of a box. It belongs to one request at a time.
type upstream struct {
	key    incarnation
	conn   net.Conn
	in     h1.Reader
	direct *socket.Direct // conn; nil if it is not a TCP connection
	raw    syscall.RawConn
	used   bool      // it has carried an earlier request
	since  time.Time // when it became idle
	reader relay.ServerReader
	leave  func()       // releases the place of a request over HTTP/2, or nil
	watch  *relay.Watch // for requests without a goroutine; nil before the first
}

// Write implements [relay.Server].
func (u *upstream) Write(b []byte) error {
	_, err := u.conn.Write(b)
	return err
}

// Abort implements [relay.Server].
func (u *upstream) Abort() { socket.Abort(u.conn) }

// fillNow reads without waiting. If no bytes have arrived it returns [os.ErrDeadlineExceeded].
func (u *upstream) fillNow() error {
	u.reader.Renew()
	u.reader.Now = true
	u.direct.SetNonBlocking(true)
	err := u.in.Fill()
	u.direct.SetNonBlocking(false)
	u.reader.Now = false
	return err
}

// watched returns the watch of the connection, or nil if it cannot be watched.
func (u *upstream) watched(by *relay.Poller) *relay.Watch {
	if u.watch == nil && u.raw != nil {
		u.watch = by.Add(u.raw)
	}
	return u.watch
}

// unwatch ends the watch that an earlier request without a goroutine needed.
func (u *upstream) unwatch() {
	if u.watch != nil {
		u.watch.Remove(u.raw)
		u.watch = nil
	}
}

func (u *upstream) close() {
	u.in.Release()
	if u.watch != nil {
		u.watch.Close()
	}
	_ = u.conn.Close()
	if u.leave != nil {
		u.leave()
	}
}

// ask sends a request, or its beginning if whole is not set. If the box has sent data or EOF on a reused connection, ask
// returns [socket.ErrNotAsked] and sends no bytes.
func (u *upstream) ask(request []byte, whole bool) error {
	switch {
	case u.used && whole:
		return u.direct.SendRequest(request)
	case u.used && !u.quiet():
		return socket.ErrNotAsked
	}
	return u.Write(request)
}

// quiet reports whether the box has sent neither data nor EOF on an idle connection.
func (u *upstream) quiet() bool {
	quiet := false
	err := u.raw.Control(func(fd uintptr) { quiet = socket.Quiet(int(fd)) })
	return err == nil && quiet
}

// pool keeps idle connections to boxes. Safe for concurrent use.
type pool struct {
	most int // limit of idle connections

	mu    sync.Mutex
	idle  map[incarnation][]*upstream // most recently used last
	n     int
	sweep *time.Timer // nil while there are no idle connections
}

// get returns the most recently used idle connection to a target, or nil. The box may have sent data on it since.
func (p *pool) get(t Target) *upstream {
	u := p.pop(t.incarnation())
	if u != nil {
		u.used = true
	}
	return u
}

func newUpstream(t Target, conn net.Conn) *upstream {
	u := &upstream{key: t.incarnation(), conn: conn}
	if tcp, ok := conn.(*net.TCPConn); ok {
		u.conn = socket.NewDirect(tcp)
		if u.direct, ok = u.conn.(*socket.Direct); ok {
			u.raw, _ = tcp.SyscallConn() // nil if the connection is already closed
		}
	}
	u.reader.Conn, u.in.Source = u.conn, &u.reader
	return u
}

func (p *pool) pop(key incarnation) *upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[key]
	if len(list) == 0 {
		return nil
	}
	u := list[len(list)-1]
	list[len(list)-1] = nil
	p.idle[key] = list[:len(list)-1]
	p.n--
	return u
}

// putIdle keeps a connection whose exchange has ended cleanly, within the limits.
func (p *pool) putIdle(u *upstream) {
	if u.raw == nil || len(u.in.Bytes()) > 0 {
		u.close()
		return
	}
	u.in.Release()
	u.reader.End()
	if u.watch != nil {
		u.watch.Rest()
	}
	p.mu.Lock()
	full := p.n >= p.most || len(p.idle[u.key]) >= idleMax
	if !full {
		if p.idle == nil {
			p.idle = map[incarnation][]*upstream{}
		}
		u.since = time.Now()
		p.idle[u.key] = append(p.idle[u.key], u)
		p.n++
		if p.sweep == nil {
			p.sweep = time.AfterFunc(sweepPeriod, p.closeOld)
		}
	}
	p.mu.Unlock()
	if full {
		u.close()
	}
}

// closeOld closes connections that have been idle for idleTime, and reschedules itself while others remain.
func (p *pool) closeOld() {
	p.close(func(u *upstream) bool { return time.Since(u.since) >= idleTime })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sweep = nil; p.n > 0 {
		p.sweep = time.AfterFunc(sweepPeriod, p.closeOld)
	}
}

// close closes the idle connections that match.
func (p *pool) close(match func(*upstream) bool) {
	var old []*upstream
	p.mu.Lock()
	for key, list := range p.idle {
		kept := list[:0]
		for _, u := range list {
			if match(u) {
				old = append(old, u)
			} else {
				kept = append(kept, u)
			}
		}
		p.n -= len(list) - len(kept)
		clear(list[len(kept):])
		if p.idle[key] = kept; len(kept) == 0 {
			delete(p.idle, key)
		}
	}
	p.mu.Unlock()
	for _, u := range old {
		u.close()
	}
}
