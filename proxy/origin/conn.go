package origin

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/problem"
	"boxgate/relay"
	"boxgate/relay/h1"
)

// Conn is one HTTP/1.1 connection to an origin server. One goroutine uses it at a time, except that one may write while
// another reads.
type Conn struct {
	pool    *boxPool
	place   *place
	NetConn net.Conn
	In      h1.Reader
	holds   memory.Claim // for In

	TCP    *net.TCPConn
	reader relay.ServerReader
	wait   wait
	raw    syscall.RawConn
	quiet  bool
	look   func(fd uintptr)
	direct *socket.Direct   // NetConn, or the connection that it wraps
	dial   policy.Request   // the request for its address
	judged *policy.Compiled // the last policy that allowed dial
	served int              // requests sent before this one
	ended  time.Time        // when the last exchange ended
	framed bool             // the last response had content, delimited by its framing
	spare  [1]byte
	// layered is set if a layer above the socket may buffer received data: TLS to the server, or to a proxy.
	layered bool
	dirty   bool // an exchange has begun and not ended cleanly: the connection must not be reused
	// notified and finished are set once the server was notified of the end of the requests, by TLS and by TCP.
	notified, finished bool
}

// newUpstream takes ownership of a newly dialled connection, which it closes on an error. The place stays the caller's.
func newUpstream(p *boxPool, pl *place, conn net.Conn, box *policy.Box) (u *Conn, err error) {
	defer func() {
		if u == nil {
			socket.Abort(conn)
		}
	}()
	tcp, ok := socket.TCP(conn)
	if !ok {
		return nil, errors.New("upstream is not a TCP connection")
	}
	direct, ok := socket.DirectOf(conn)
	if !ok {
		return nil, errors.New("upstream is not read directly")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	dial, err := dialRequest(pl.Key(), conn, box)
	if err != nil {
		return nil, err
	}
	u = &Conn{pool: p, place: pl, NetConn: conn, TCP: tcp, direct: direct, raw: raw, dial: dial}
	u.reader.Conn, u.wait.conn, u.layered = conn, conn, !isBare(conn)
	u.holds.Open(p.memory, memory.Buffers)
	u.In.Memory = memory.Doubled{Claim: &u.holds}
	u.look = func(fd uintptr) { u.quiet = socket.Quiet(int(fd)) }
	return u, nil
}

// Cost implements [pool.Conn].
func (u *Conn) Cost(idle bool) int {
	switch t, ok := u.NetConn.(*socket.Terminated); {
	case !idle:
		return costOf(u.NetConn)
	case ok:
		return plainIdle + t.IdleCost()
	case u.layered: // TLS to a proxy
		return originCost
	}
	return plainIdle
}

// isBare reports whether a connection reads its socket without a layer that buffers data.
func isBare(c net.Conn) bool {
	if p, ok := c.(*passage); ok {
		c = p.Conn
	}
	_, ok := c.(*socket.Direct)
	return ok
}

// dialRequest returns the request that the policy allowed when conn was dialled.
func dialRequest(key key, conn net.Conn, box *policy.Box) (policy.Request, error) {
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return policy.Request{}, errors.New("the connection to the server has no address")
	}
	to := remote.AddrPort()
	return policy.Request{
		Stage: policy.StageDial, Box: box.ID, Name: key.name, Addr: to.Addr().Unmap(), Port: to.Port(), Protocol: policy.TCP,
	}, nil
}

// Serves reports whether the connection can be used for a target.
func (u *Conn) Serves(to *Target) bool { return u.place.Key() == to.key() }

// Addr returns the remote address.
func (u *Conn) Addr() netip.Addr { return u.dial.Addr }

// AllowedBy reports whether c is the last policy that allowed the address.
func (u *Conn) AllowedBy(c *policy.Compiled) bool { return u.judged == c }

// Crowded reports whether the box has so many open connections that an idle client should not keep one.
func (u *Conn) Crowded() bool { return u.pool.crowded() }

// Begin begins an exchange; the connection cannot be reused until [Conn.Done]. It reports whether there was an earlier
// exchange.
func (u *Conn) Begin() (again bool) {
	u.served++
	u.dirty = true
	return u.served > 1
}

// Again reports whether the connection has carried an exchange before.
func (u *Conn) Again() bool { return u.served > 0 }

// Done ends an exchange whose response, framed by f, was read whole, and reports whether the connection can carry
// another: it has not been ended, and no bytes after the response have been read.
func (u *Conn) Done(f h1.Framing) bool {
	u.dirty = u.Ended() || len(u.In.Bytes()) > 0 || u.ahead()
	u.framed = f.Chunked || f.Length > 0
	u.ended = time.Now()
	u.In.Relax()
	return !u.dirty
}

// ahead reports whether TLS has read more than it has returned: further content, or the end. It does not notice an incomplete
// record.
func (u *Conn) ahead() bool {
	if !u.layered {
		return false
	}
	u.direct.PauseReads(true)
	defer u.direct.PauseReads(false)
	n, err := u.NetConn.Read(u.spare[:])
	return n > 0 || !errors.Is(err, os.ErrDeadlineExceeded)
}

// ReadFor binds the following reads to a client: they fail with the error of ctx when ctx ends, and with
// [relay.ErrClientGone] when gone, which is polled, reports true.
func (u *Conn) ReadFor(ctx context.Context, gone func() bool) {
	u.wait.ctx, u.wait.gone, u.wait.again = ctx, gone, false
	u.reader.Begin(&u.wait, firstTick)
	u.In.Source = &u.reader
}

// AskAgain declares that the request just begun can be sent again on another connection. If this one was kept and its server
// has vanished, reads then fail early with [ErrVanished]. It applies until [Conn.Answered].
func (u *Conn) AskAgain() {
	u.wait.again = u.wait.again || u.served > 1
}

// Answered is called when the response has begun, and revokes [Conn.AskAgain].
func (u *Conn) Answered() { u.wait.again = false }

// End notifies the server that no request follows, by TLS (close_notify) and by TCP (FIN), each once. Data that the server
// still sends can be read. The connection cannot carry another request.
func (u *Conn) End(notify, finish bool) {
	if t, ok := u.NetConn.(*socket.Terminated); ok && notify && !u.notified {
		u.notified = true
		_ = t.CloseWrite()
	}
	if !finish || u.finished {
		return
	}
	u.finished = true
	for c := below(u.NetConn); c != nil; c = below(c) {
		if t, ok := c.(*socket.Terminated); ok { // to a proxy
			_ = t.CloseWrite()
		}
	}
	_ = u.TCP.CloseWrite()
}

// below returns the connection that c wraps, or nil.
func below(c net.Conn) net.Conn {
	if w, ok := c.(interface{ NetConn() net.Conn }); ok {
		return w.NetConn()
	}
	return nil
}

// Ended reports whether [Conn.End] has notified the server.
func (u *Conn) Ended() bool { return u.notified || u.finished }

// Uncount releases the place of a connection that from now on counts as its client's, like every tunnel.
func (u *Conn) Uncount() { u.place.Release() }

// Usable reports whether an idle connection can carry another request: it is [Conn.Ready], and its server is
// [Conn.Quiet].
func (u *Conn) Usable(c *policy.Compiled) bool { return u.Ready(c) && u.Quiet() }

// Ready reports whether the connection can carry another request, as far as the gateway knows: its last exchange ended
// cleanly, and the policy c still allows its address.
func (u *Conn) Ready(c *policy.Compiled) bool {
	if (u.judged != c || u.dial.Name.IsService()) && !u.place.Key().decider(c).Decide(u.dial).Allowed() { // a service may have moved
		return false
	}
	u.judged = c
	return !u.dirty && len(u.In.Bytes()) == 0
}

// Fresh reports whether a request that may be sent again needs no check with [Conn.Quiet]: the last exchange ended less than
// within ago, its response had content, and it consumed all data that had arrived. A server that wrongly sends a body with a
// response to HEAD, or of status 204 or 304, sends it next, and a server that has waited long for a request sends a 408: both
// would be taken for the next response.
func (u *Conn) Fresh(within time.Duration) bool {
	return u.framed && !u.direct.Filled() && time.Since(u.ended) < within
}

// Quiet asks the kernel whether the server has sent neither data nor EOF since the last exchange.
func (u *Conn) Quiet() bool {
	u.quiet = false
	return u.raw.Control(u.look) == nil && u.quiet
}

// Keep returns the connection to the pool if its last exchange ended cleanly, else closes it: leftover data from the
// server would be taken for the next response.
func (u *Conn) Keep() {
	if u.dirty {
		u.Close()
		return
	}
	u.In.Release()
	u.In.Source, u.wait.ctx, u.wait.gone = nil, nil, nil // which would keep the client's state
	u.place.Rest()
}

// Fit implements [pool.Conn].
func (u *Conn) Fit() bool { return u.pool.fits(u.place) }

// HangUp implements [pool.Conn].
func (u *Conn) HangUp() { u.Close() }

// Close closes the connection. It never blocks on the peer.
func (u *Conn) Close() {
	u.In.Release()
	_ = u.TCP.Close() // not u.conn: a TLS close_notify could wait for a peer that does not read
	u.place.Release()
}

// Abort closes the connection while a goroutine may still be using it.
func (u *Conn) Abort() { _ = u.TCP.Close() }

// Write sends b; errors are of type *[WriteError].
func (u *Conn) Write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := u.NetConn.Write(b); err != nil {
		return &WriteError{err}
	}
	return nil
}

// WriteError is a failure of the upstream during an upload. Its response may still be readable.
type WriteError struct{ error }

func (e *WriteError) Unwrap() error { return e.error }

// A read from a server checks the client after firstTick, then at intervals that double up to upstreamTick.
const (
	firstTick    = 500 * time.Millisecond
	upstreamTick = 5 * time.Second
)

// wait is the wait of a client for a response ([relay.Expecter]).
type wait struct {
	conn net.Conn
	ctx  context.Context
	gone func() bool // reports whether the client has disconnected
	// again is set if the request can be sent again: the wait then ends early if the server seems to have vanished.
	again bool
}

// ErrVanished ends a read from a server that no longer acknowledges the data sent to it.
var ErrVanished = error(problem.Fixed("the server acknowledges nothing any more"))

// Interrupted implements [relay.Expecter].
func (w *wait) Interrupted() error { return w.ctx.Err() }

// Expected implements [relay.Expecter].
func (w *wait) Expected(last time.Duration) (next time.Duration, err error) {
	if w.gone() {
		return 0, relay.ErrClientGone
	}
	next = min(2*last, upstreamTick)
	if w.again {
		next = min(next, socket.VanishedLook)
	}
	return next, w.vanished()
}

// vanished returns [ErrVanished] if the server has not acknowledged data for [socket.LostAfter] or, if the request can be sent
// again, for [socket.VanishedAfter].
func (w *wait) vanished() error {
	switch silent := socket.UnansweredBy(w.conn); {
	case silent >= socket.LostAfter, w.again && silent >= socket.VanishedAfter:
		return ErrVanished
	}
	return nil
}
