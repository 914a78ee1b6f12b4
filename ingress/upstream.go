package ingress

import (
	"net"
	"syscall"
	"time"

	"boxgate/internal/socket"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/relay/pool"
)

const (
	idleMax   = 256 // connections kept for one URL
	idleTime  = 90 * time.Second
	goneCheck = time.Second // how often a read from a box checks whether its response is still expected
)

// upstream is one connection to a port of a box ([pool.Conn]). It belongs to one request at a time.
type upstream struct {
	key    incarnation
	place  *place
	conn   net.Conn
	in     h1.Reader
	direct *socket.Direct // conn; nil if it is not a TCP connection
	raw    syscall.RawConn
	used   bool // it has carried an earlier request
	reader relay.ServerReader
	leave  func()       // releases the place of a request over HTTP/2, or of the connection
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

// ask sends a request, or its beginning if whole is not set. It may read the beginning of the answer to a whole request. If the box
// has sent data or EOF on a reused connection, ask returns [socket.ErrNotAsked] and sends no bytes.
func (u *upstream) ask(request []byte, whole bool) error {
	switch {
	case u.used && whole:
		n, err := u.direct.SendRequest(request, u.in.Room())
		u.in.Add(n)
		return err
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

// Usable implements [pool.Conn]. The box may have sent data since; [upstream.ask] finds out.
func (u *upstream) Usable(struct{}) bool { return true }

// Fit implements [pool.Conn].
func (u *upstream) Fit() bool { return true }

// Cost implements [pool.Conn].
func (u *upstream) Cost(bool) int { return 0 }

// HangUp implements [pool.Conn].
func (u *upstream) HangUp() { u.close() }

// upstreams are the connections to boxes over HTTP/1.1.
type upstreams struct {
	pool.Pool[incarnation, struct{}]
}

type place = pool.Place[incarnation, struct{}]

// open prepares to keep at most that many idle connections.
func (p *upstreams) open(most int) {
	p.Idle, p.IdleEach, p.IdleTime, p.Owner = most, idleMax, idleTime, boxOf
}

// boxOf returns the box that owns connections of a key in a pool.
func boxOf(key incarnation) string { return string(key.box) }

// get returns the most recently used idle connection to a target, or nil. The box may have sent data on it since.
func (p *upstreams) get(t Target) *upstream {
	u, ok := p.Take(t.incarnation(), struct{}{}).(*upstream)
	if !ok {
		return nil
	}
	u.used = true
	return u
}

// dialled returns the connection to a target that was just made.
func (p *upstreams) dialled(t Target, conn net.Conn) (*upstream, error) {
	u := newUpstream(t, conn)
	pl, err := p.Acquire(u.key, 0)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	u.place, u.leave = pl, pl.Release
	_ = pl.Fill(u) // it takes no memory
	return u, nil
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

// putIdle keeps a connection whose exchange has ended cleanly, within the limits.
func (u *upstream) putIdle() {
	if u.raw == nil || len(u.in.Bytes()) > 0 {
		u.close()
		return
	}
	u.in.Release()
	u.reader.End()
	if u.watch != nil {
		u.watch.Rest()
	}
	u.place.Rest()
}
