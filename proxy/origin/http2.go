package origin

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/relay/h2/upstream"
	"boxgate/relay/pool"
)

// ExpectWait is how long to wait for the answer to an expectation before the body is sent anyway (RFC 9110, 10.1.1).
const ExpectWait = time.Second

// ResponseWindow is the number of bytes that a server may send on a stream whose response is not read.
const ResponseWindow = upstream.StreamWindow

// H2Conn is one HTTP/2 connection to an origin server, shared by many streams ([pool.Shared]).
type H2Conn struct {
	pool   *boxPool
	place  *place
	Client *upstream.Conn
	cost   int                             // memory, in bytes
	dial   policy.Request                  // the request for its address
	judged atomic.Pointer[policy.Compiled] // the last policy that allowed dial
}

// Addr is the remote address of the connection.
func (u *H2Conn) Addr() netip.Addr { return u.dial.Addr }

// AllowedBy reports whether a policy has been evaluated for the address and allowed it.
func (u *H2Conn) AllowedBy(c *policy.Compiled) bool { return u.judged.Load() == c }

// Usable implements [pool.Conn]. It evaluates a policy for the address, once per policy.
func (u *H2Conn) Usable(c *policy.Compiled) bool {
	if u.judged.Load() != c || u.dial.Name.IsService() { // a service may have moved
		if !u.place.Key().decider(c).Decide(u.dial).Allowed() {
			return false
		}
		u.judged.Store(c)
	}
	return true
}

// Fit implements [pool.Conn].
func (u *H2Conn) Fit() bool { return u.pool.fits(u.place) }

// Cost implements [pool.Conn]. The connection is read while it is idle, in contrast to HTTP/1.1.
func (u *H2Conn) Cost(bool) int { return u.cost }

// HangUp implements [pool.Conn].
func (u *H2Conn) HangUp() { u.Client.Close() }

// Reserve implements [pool.Shared].
func (u *H2Conn) Reserve() bool { return u.Client.Reserve() }

// Cancel implements [pool.Shared].
func (u *H2Conn) Cancel() { u.Client.Release() }

// Leave ends one stream's use of the connection. used reports whether the stream was opened; if not, its reservation is
// cancelled.
func (u *H2Conn) Leave(used bool) { u.place.Leave(used) }

// Any is a connection for one request: exactly one field is set.
type Any struct {
	H1 *Conn
	H2 *H2Conn
}

// anyOf returns a connection of the pool.
func anyOf(c pool.Conn[*policy.Compiled]) (up Any) {
	switch c := c.(type) {
	case *Conn:
		up.H1 = c
	case *H2Conn:
		up.H2 = c
	}
	return up
}

// Any returns a connection for one request of an HTTP/2 client: a share of an open one, or a new one. Streams that need
// the same new connection share one dial.
func (p *Origins) Any(ctx context.Context, who Client, to *Target) (Any, error) {
	of, err := p.poolOf(who)
	if err != nil {
		return Any{}, err
	}
	key := to.key()
	for {
		up, plain := of.conns.Share(key, who.Box.Policy.Load())
		switch {
		case up != nil:
			return anyOf(up), nil
		case plain:
			return p.anyPlain(ctx, of, who.Box, *to)
		}
		made, err := p.dialShared(ctx, of, who.Box, *to)
		if !errors.Is(err, pool.ErrPlain) {
			return made, err
		}
	}
}

// Shared returns a share of an open HTTP/2 connection for one request, or nil if no connection has room. It does not block.
func (p *Origins) Shared(who Client, to *Target) *H2Conn {
	of, err := p.poolOf(who)
	if err != nil {
		return nil
	}
	up, _ := of.conns.Share(to.key(), who.Box.Policy.Load())
	return anyOf(up).H2
}

// anyPlain returns a connection to a server that spoke HTTP/1.1 when it was last dialled: an idle one, or a new one of either version.
func (p *Origins) anyPlain(ctx context.Context, of *boxPool, box *policy.Box, to Target) (Any, error) {
	key := to.key()
	if u := of.acquireIdle(key, box.Policy.Load()); u != nil {
		return Any{H1: u}, nil
	}
	pl, err := of.conns.Acquire(key, key.cost())
	if err != nil {
		return Any{}, refused(key, err)
	}
	made, err := p.dialAny(ctx, of, pl, box, to)
	if made == nil {
		pl.Release()
		of.conns.Forget(key) // further requests share an attempt
		return Any{}, err
	}
	if err := pl.Add(made); err != nil {
		return Any{}, refused(key, err)
	}
	return anyOf(made), nil
}

// dialShared returns a new connection, which other streams may wait for as well.
func (p *Origins) dialShared(ctx context.Context, of *boxPool, box *policy.Box, to Target) (Any, error) {
	at := to.key()
	made, err := of.conns.Get(ctx, at, &pool.Order[key, *policy.Compiled]{
		By: box.Policy.Load, Cost: at.cost(),
		Dial: func(ctx context.Context, pl *place, _ bool) (pool.Conn[*policy.Compiled], error) {
			return p.dialAny(ctx, of, pl, box, to)
		},
	})
	var fault *pool.Panic
	if errors.As(err, &fault) {
		panic(fault) // ends the request
	}
	return anyOf(made), refused(at, err)
}

// dialAny dials and lets the server choose the protocol. A connection of HTTP/2 has a stream reserved.
func (p *Origins) dialAny(ctx context.Context, of *boxPool, pl *place, box *policy.Box, to Target) (pool.Conn[*policy.Compiled], error) {
	alpn := alpnBoth
	if to.http1 {
		alpn = alpnHTTP1
	}
	conn, err := p.DialTLS(ctx, box, to, alpn)
	if err != nil {
		return nil, err
	}
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		u, err := newUpstream(of, pl, conn, box)
		if err != nil {
			return nil, err
		}
		return u, nil
	}
	dial, err := dialRequest(pl.Key(), conn, box)
	if err != nil {
		socket.Abort(conn)
		return nil, err
	}
	client := upstream.New(conn, pl.Release)
	if !client.Reserve() {
		client.Close()
		return nil, &problem.Upstream{Reason: name.ReasonUpstreamHTTP, Name: pl.Key().shown()}
	}
	return &H2Conn{pool: of, place: pl, Client: client, cost: costOf(conn), dial: dial}, nil
}
