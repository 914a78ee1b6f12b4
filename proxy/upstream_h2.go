package proxy

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"boxgate/policy"
	"boxgate/proxy/h1"
)

//lint:file-ignore SA1019 net/http speaks HTTP/2 on a *tls.Conn alone; what is sent here is rewritten below it (neverIndexed).

const (
	h2HostsMax = 1024 // hosts remembered over all boxes before those without a connection are forgotten
	h2Ping     = 30 * time.Second
	h2PingWait = 15 * time.Second

	h2ResponseWindow = 512 << 10 // what an upstream may send ahead of a client that does not read
	h2ResponsesMax   = 64 << 20  // the same over all streams of a connection: no stream holds up the others
)

// h2Transport makes HTTP/2 client connections of connections already dialled and verified. It never dials, follows or
// decompresses.
var h2Transport = sync.OnceValues(func() (*http2.Transport, error) {
	t, err := http2.ConfigureTransports(&http.Transport{HTTP2: &http.HTTP2Config{
		MaxReceiveBufferPerStream: h2ResponseWindow, MaxReceiveBufferPerConnection: h2ResponsesMax,
	}})
	if err != nil {
		return nil, err
	}
	t.DisableCompression = true
	t.MaxHeaderListSize = h1.MaxHead
	t.MaxEncoderHeaderTableSize = 1 // see neverIndexed
	t.IdleConnTimeout = upstreamIdle
	t.ReadIdleTimeout, t.PingTimeout = h2Ping, h2PingWait
	return t, nil
})

// h2Upstream is one HTTP/2 connection to an origin server, used by many streams at once.
type h2Upstream struct {
	conn *http2.ClientConn
	dial policy.Request // the address it goes to
}

// h2Pool keeps the HTTP/2 connections of the boxes. The zero value is empty. Safe for concurrent use.
type h2Pool struct {
	mu    sync.Mutex
	hosts map[upstreamKey]*h2Host
}

type h2Host struct {
	conns   []*h2Upstream
	dialing chan struct{} // closed when the dial under way has ended; nil if there is none
	plain   bool          // the last handshake chose HTTP/1.1
}

// anyUpstream is a connection for one request: exactly one field is set.
type anyUpstream struct {
	h1 *upstream
	h2 *h2Upstream
}

// upstream2 returns a connection for one request of an HTTP/2 client: a place on one that is open, else a new one. Streams
// that need the same new connection wait for one dial.
func (s *session) upstream2(ctx context.Context, r *ruling) (anyUpstream, error) {
	key, pool := keyOf(s, r), &s.p.upstreams.h2
	for {
		up, wait, plain := pool.reserve(key, s.box.Policy.Load())
		switch {
		case up != nil:
			return anyUpstream{h2: up}, nil
		case wait != nil:
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return anyUpstream{}, ctx.Err()
			}
		case plain:
			if u := s.p.upstreams.h1.take(key, s.box.Policy.Load()); u != nil {
				return anyUpstream{h1: u}, nil
			}
		}
		return s.dialAny(ctx, key, r)
	}
}

// dialAny dials and lets the upstream choose the protocol.
func (s *session) dialAny(ctx context.Context, key upstreamKey, r *ruling) (anyUpstream, error) {
	var made *h2Upstream
	plain := false
	defer func() { s.p.upstreams.h2.dialled(key, made, plain) }()
	conn, err := s.p.dialTLS(ctx, s.box, r.target(), alpnBoth)
	if err != nil {
		return anyUpstream{}, err
	}
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		plain = true
		u, err := newUpstream(key, conn, s.box)
		return anyUpstream{h1: u}, err
	}
	t, err := h2Transport()
	if err != nil {
		return anyUpstream{}, err
	}
	client, err := t.NewClientConn(&neverIndexed{Conn: conn})
	if err != nil {
		_ = conn.Close()
		return anyUpstream{}, &upstreamError{Reason: policy.ReasonUpstreamHTTP, Name: key.name, Err: err}
	}
	to, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil || !client.ReserveNewRequest() {
		_ = client.Close()
		return anyUpstream{}, &upstreamError{Reason: policy.ReasonUpstreamHTTP, Name: key.name, Err: err}
	}
	made = &h2Upstream{conn: client, dial: policy.Request{
		Stage: policy.StageDial, Box: s.box.ID, Name: key.name, Addr: to.Addr().Unmap(), Port: to.Port(), Protocol: policy.TCP,
	}}
	return anyUpstream{h2: made}, nil
}

// reserve returns a place on an open connection; or what to wait for; or neither, and the caller dials and reports to
// dialled. plain says that the host is known to speak HTTP/1.1 alone.
func (p *h2Pool) reserve(key upstreamKey, c *policy.Compiled) (up *h2Upstream, wait <-chan struct{}, plain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	host := p.hosts[key]
	if host == nil {
		host = &h2Host{}
		p.addLocked(key, host)
	}
	open := host.conns[:0]
	for _, u := range host.conns {
		if !c.Decide(u.dial).Allowed() {
			go u.conn.Close() // its streams are judged, and cut, by themselves
			continue
		}
		if state := u.conn.State(); state.Closed || state.Closing {
			continue
		}
		open = append(open, u)
		if up == nil && u.conn.ReserveNewRequest() {
			up = u
		}
	}
	clear(host.conns[len(open):])
	host.conns = open
	switch {
	case up != nil:
		return up, nil, false
	case host.plain:
		return nil, nil, true
	case host.dialing != nil:
		return nil, host.dialing, false
	}
	host.dialing = make(chan struct{})
	return nil, nil, false
}

func (p *h2Pool) addLocked(key upstreamKey, host *h2Host) {
	if p.hosts == nil {
		p.hosts = map[upstreamKey]*h2Host{}
	}
	if len(p.hosts) >= h2HostsMax {
		for k, h := range p.hosts {
			if len(h.conns) == 0 && h.dialing == nil {
				delete(p.hosts, k)
			}
		}
	}
	p.hosts[key] = host
}

// dialled ends a dial: made is the connection for others to share, if it became one.
func (p *h2Pool) dialled(key upstreamKey, made *h2Upstream, plain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	host := p.hosts[key]
	if host == nil { // the box was closed meanwhile; the one request made for it ends with its client
		host = &h2Host{}
		p.addLocked(key, host)
	}
	host.plain = plain
	if made != nil {
		host.conns = append(host.conns, made)
	}
	if host.dialing != nil {
		close(host.dialing)
		host.dialing = nil
	}
}

// closeBox closes every connection of a box.
func (p *h2Pool) closeBox(box policy.BoxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, host := range p.hosts {
		if key.box != box {
			continue
		}
		for _, u := range host.conns {
			_ = u.conn.Close()
		}
		if host.dialing != nil {
			close(host.dialing)
		}
		delete(p.hosts, key)
	}
}
