package origin

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/relay/h2/upstream"
)

// ExpectWait is how long to wait for the answer to an expectation before the body is sent anyway (RFC 9110, 10.1.1).
const ExpectWait = time.Second

// ResponseWindow is the number of bytes that a server may send on a stream whose response is not read.
const ResponseWindow = upstream.StreamWindow

// H2Conn is one HTTP/2 connection to an origin server, shared by many streams.
type H2Conn struct {
	place  *place
	Client *upstream.Conn
	dial   policy.Request                  // the request for its address
	judged atomic.Pointer[policy.Compiled] // the last policy that allowed dial

	// Guarded by the pool's mu.
	users int // streams that share it
}

// Addr is the remote address of the connection.
func (u *H2Conn) Addr() netip.Addr { return u.dial.Addr }

// AllowedBy reports whether a policy has been evaluated for the address and allowed it.
func (u *H2Conn) AllowedBy(c *policy.Compiled) bool { return u.judged.Load() == c }

// allowedBy evaluates a policy for the address, once per policy.
func (u *H2Conn) allowedBy(c *policy.Compiled) bool {
	if u.judged.Load() != c {
		if !u.place.key.decider(c).Decide(u.dial).Allowed() {
			return false
		}
		u.judged.Store(c)
	}
	return true
}

// h2Host is a pool's state for one host. It is kept while there is a connection, a dial or a protocol to remember.
type h2Host struct {
	conns   []*H2Conn
	dialing *place // of the dial in progress that others wait for, or nil
	plain   bool   // the last handshake chose HTTP/1.1
}

// Any is a connection for one request: exactly one field is set.
type Any struct {
	H1 *Conn
	H2 *H2Conn
}

// Any returns a connection for one request of an HTTP/2 client: a share of an open one, or a new one. Streams that need
// the same new connection share one dial.
func (p *Origins) Any(ctx context.Context, who Client, to Target) (Any, error) {
	key := to.key()
	for {
		pool, err := p.poolOf(who)
		if err != nil {
			return Any{}, err
		}
		o, err := pool.reserve(key, who.Box.Policy.Load())
		switch {
		case err != nil:
			return Any{}, err
		case o.up != nil:
			return Any{H2: o.up}, nil
		case o.wait != nil:
			select {
			case <-o.wait:
				continue
			case <-ctx.Done():
				return Any{}, ctx.Err()
			}
		case o.plain:
			if u := pool.acquireIdle(key, who.Box.Policy.Load()); u != nil {
				return Any{H1: u}, nil
			}
			if o.place, err = pool.acquire(key); err != nil {
				return Any{}, err
			}
		}
		return p.dialAny(ctx, o.place, who.Box, to)
	}
}

// Shared returns a share of an open HTTP/2 connection for one request, or nil if no connection has room. It does not block.
func (p *Origins) Shared(who Client, to Target) *H2Conn {
	pool, err := p.poolOf(who)
	if err != nil {
		return nil
	}
	pool.mu.Lock()
	defer pool.unlock()
	host := pool.hosts[to.key()]
	if host == nil {
		return nil
	}
	return pool.shareLocked(host, who.Box.Policy.Load())
}

// dialAny dials and lets the server choose the protocol.
func (p *Origins) dialAny(ctx context.Context, pl *place, box *policy.Box, to Target) (up Any, err error) {
	plain := false
	defer func() {
		pl.pool.dialled(pl, up.H2, plain)
		if up == (Any{}) {
			pl.release()
		}
	}()
	conn, err := p.DialTLS(ctx, box, to, alpnBoth)
	if err != nil {
		return Any{}, err
	}
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		plain = true
		up.H1, err = newUpstream(pl, conn, box)
		return up, err
	}
	up.H2, err = newH2Upstream(pl, conn, box)
	return up, err
}

// newH2Upstream takes ownership of a newly dialled connection. The caller's stream is its first user.
func newH2Upstream(pl *place, conn *socket.Terminated, box *policy.Box) (u *H2Conn, err error) {
	defer func() {
		if u == nil {
			socket.Abort(conn)
		}
	}()
	dial, err := dialRequest(pl.key, conn, box)
	if err != nil {
		return nil, err
	}
	if err := pl.use(conn); err != nil {
		return nil, err
	}
	client := upstream.New(conn, pl.release)
	if !client.Reserve() {
		client.Close()
		return nil, &problem.Upstream{Reason: name.ReasonUpstreamHTTP, Name: pl.key.shown()}
	}
	return &H2Conn{place: pl, Client: client, dial: dial, users: 1}, nil
}

// h2Offer is the pool's answer to a request of an HTTP/2 client: exactly one field is set.
type h2Offer struct {
	up    *H2Conn         // a share in an open connection
	wait  <-chan struct{} // closed when a dial in progress has ended
	plain bool            // the host speaks HTTP/1.1 only
	place *place          // for a connection that the caller dials and reports to dialled
}

// reserve returns the offer. It returns an error if the box may not have more connections.
//
// It must not block on a write to an upstream that does not read: a connection's Reserve never does.
func (p *boxPool) reserve(key key, c *policy.Compiled) (h2Offer, error) {
	p.mu.Lock()
	defer p.unlock()
	host := p.hosts[key]
	if host != nil {
		if up := p.shareLocked(host, c); up != nil {
			return h2Offer{up: up}, nil
		}
	}
	if host = p.hosts[key]; host != nil { // its last connection may have just been dropped
		switch {
		case host.plain:
			return h2Offer{plain: true}, nil
		case host.dialing != nil:
			return h2Offer{wait: host.dialing.done}, nil
		}
	}
	pl, err := p.acquireLocked(key)
	if err != nil {
		return h2Offer{}, err
	}
	pl.done = make(chan struct{})
	p.hostLocked(key).dialing = pl
	return h2Offer{place: pl}, nil
}

// shareLocked returns a connection that accepts another stream, or nil. It drops those whose address is now denied:
// their streams are judged, and cut, separately.
func (p *boxPool) shareLocked(host *h2Host, c *policy.Compiled) *H2Conn {
	u, unfit := pick(host.conns, c)
	for _, u := range unfit {
		p.dropLocked(u.place)
	}
	if u != nil {
		p.wakeLocked(u.place)
		u.users++
	}
	return u
}

// pick reserves a stream on one of the connections. It also returns the connections that are no longer usable.
func pick(conns []*H2Conn, c *policy.Compiled) (u *H2Conn, unfit []*H2Conn) {
	for _, u := range conns {
		switch {
		case !u.allowedBy(c):
			unfit = append(unfit, u)
		case u.Client.Reserve():
			return u, unfit
		case u.users == 0: // accepts no streams although unused: the server is about to close it
			unfit = append(unfit, u)
		}
	}
	return nil, unfit
}

// hostLocked returns the state of a host, creating it if needed. Each host that cannot be dropped has at least one place,
// so there are never more than 2*max.
func (p *boxPool) hostLocked(key key) *h2Host {
	if host := p.hosts[key]; host != nil {
		return host
	}
	if len(p.hosts) >= 2*p.most() {
		for k, h := range p.hosts {
			if len(h.conns) == 0 && h.dialing == nil {
				delete(p.hosts, k)
			}
		}
	}
	host := &h2Host{}
	p.hosts[key] = host
	return host
}

// dialled records the end of a dial. made is the connection for others to share, or nil.
func (p *boxPool) dialled(pl *place, made *H2Conn, plain bool) {
	p.mu.Lock()
	defer p.unlock()
	if pl.done != nil {
		close(pl.done)
	}
	if made != nil {
		pl.h2 = made
	}
	if p.closed {
		if made != nil {
			p.dropLocked(pl)
		}
		return
	}
	host := p.hostLocked(pl.key)
	host.plain = plain
	if host.dialing == pl {
		host.dialing = nil
	}
	if made != nil && pl.held { // the server may have closed it already
		host.conns = append(host.conns, made)
	}
	p.tidyLocked(pl.key, host)
}

// forgetLocked removes a connection from those offered to further streams.
func (p *boxPool) forgetLocked(u *H2Conn) {
	host := p.hosts[u.place.key]
	if host == nil {
		return
	}
	if i := slices.Index(host.conns, u); i >= 0 {
		host.conns = slices.Delete(host.conns, i, i+1)
	}
	p.tidyLocked(u.place.key, host)
}

func (p *boxPool) tidyLocked(key key, host *h2Host) {
	if len(host.conns) == 0 && host.dialing == nil && !host.plain {
		delete(p.hosts, key)
	}
}

// Leave ends one stream's use of the connection. used reports whether the stream was opened; if not, its reservation is
// cancelled.
func (u *H2Conn) Leave(used bool) {
	if !used {
		u.Client.Release()
	}
	p := u.place.pool
	p.mu.Lock()
	defer p.unlock()
	u.users--
	if u.users == 0 && u.place.held {
		p.restLocked(u.place)
	}
}
