package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"boxgate/audit"
	"boxgate/ingress/balancer"
	"boxgate/internal/peernet"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
)

// This part passes connections on to the hosts of a fleet that have their boxes, and accepts connections from other hosts. TLS is not
// terminated in between: the name in the ClientHello decides, and the host with the box serves the visitor as if the visitor had
// connected to it. A connection is passed on once at most. Requests without such a name are passed on one by one: see remote.go.

// Fleet is the way to the public URLs of the other hosts of a fleet. Safe for concurrent use.
type Fleet interface {
	// Owner returns the other host that has the box of a host name. ok is false for names that this host serves or refuses.
	Owner(host string) (id string, ok bool)
	// Dial connects to the public URLs of a host, and sends the header of a connection of a visitor to a host name, and first.
	Dial(ctx context.Context, owner, host string, from, to netip.AddrPort, first []byte) (*net.TCPConn, error)
	// Membership identifies another host that takes visitors, as a member with its key, and the certificate that Connect shows it, which expires
	// while connections are in use; false: there is no such host.
	Membership(host string) (membership string, ok bool)
	// Connect connects to another host by TLS with the certificates of both, for requests of the visitor From to the host name Name. Mode is
	// that of the requests, and protocol the version of HTTP, as in ALPN. It sets the other fields of the header.
	Connect(ctx context.Context, host, protocol string, v balancer.Passed) (net.Conn, error)
	// Accept returns the settings of TLS for a connection that a host has opened with Connect. Only that host can complete the handshake.
	Accept(host string) *tls.Config
	// Still returns an error if the host of such a connection is not a member any longer, or has another key.
	Still(host string, state tls.ConnectionState) error
	// Open verifies a header. It returns a header once only.
	Open(raw []byte) (balancer.Passed, error)
	// Splice passes bytes between a visitor and a host until both have ended, from start on, and calls ended once. It takes the
	// connections over: only cut may end them, at any time and without blocking.
	Splice(visitor, owner *net.TCPConn, host string, in, out *atomic.Int64, ended func(error)) (start, cut func())
}

// opening is a connection at its beginning. It keeps the bytes that were read until the ClientHello is complete.
type opening struct {
	net.Conn
	fleet   Fleet // nil: the connection is served here, whatever it names
	from    net.Addr
	read    []byte // and not consumed, or still kept
	next    int    // offset in read of the next byte
	keeps   bool
	owner   string // the other host that has the box
	host    string // the host name in TLS, if there is an owner
	discard bool   // drop written bytes
}

// NetConn returns the underlying connection.
func (o *opening) NetConn() net.Conn { return o.Conn }

// RemoteAddr implements [net.Conn].
func (o *opening) RemoteAddr() net.Addr {
	if o.from != nil {
		return o.from
	}
	return o.Conn.RemoteAddr()
}

// Read implements [net.Conn].
func (o *opening) Read(p []byte) (n int, err error) {
	switch {
	case o.next < len(o.read):
		n = copy(p, o.read[o.next:])
		if o.next += n; !o.keeps && o.next == len(o.read) {
			o.read, o.next = nil, 0
		}
		return n, nil
	case o.keeps:
		n, err = o.Conn.Read(p)
		o.read = append(o.read, p[:n]...)
		o.next = len(o.read)
		return n, err
	}
	return o.Conn.Read(p)
}

// Write implements [net.Conn].
func (o *opening) Write(p []byte) (int, error) {
	if o.discard {
		return len(p), nil
	}
	return o.Conn.Write(p)
}

// fill reads the first bytes, without consuming them.
func (o *opening) fill() error {
	buf := make([]byte, 4<<10)
	n, err := o.Conn.Read(buf)
	if o.read = buf[:n]; n > 0 {
		return nil
	}
	return err
}

var errElsewhere = errors.New("the box is on another host of the fleet")

// decide is called with the server name of the ClientHello, before anything is written. If it returns an error, the handshake fails
// without an alert to the visitor.
func (o *opening) decide(serverName string) error {
	if o.fleet != nil {
		if host := bareHost(serverName); host != "" {
			if owner, ok := o.fleet.Owner(host); ok {
				o.owner, o.host, o.discard = owner, host, true
				return errElsewhere
			}
		}
	}
	o.keeps = false
	if o.next == len(o.read) {
		o.read, o.next = nil, 0
	}
	return nil
}

// openingOf returns the opening below a connection of crypto/tls.
func openingOf(c net.Conn) (*opening, bool) {
	for {
		if o, ok := c.(*opening); ok {
			return o, true
		}
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil, false
		}
		c = below.NetConn()
	}
}

// decided is the way of [Ingress.configOf] to the opening of a connection.
func decided(hello *tls.ClientHelloInfo) error {
	if o, ok := openingOf(hello.Conn); ok {
		return o.decide(hello.ServerName)
	}
	return nil
}

// openingFor returns the connection with its beginning, and with the visitor's address if another host passes it on. If a header is not
// valid, or the visitor or the host has too many connections, it closes the connection and returns nil.
func (l *listener) openingFor(conn net.Conn, h *held) net.Conn {
	if l.tls == nil || l.g.Fleet == nil {
		return conn
	}
	o := &opening{Conn: conn, fleet: l.g.Fleet, keeps: true}
	_ = conn.SetReadDeadline(time.Now().Add(l.g.ReadHeaderTimeout))
	if err := o.fill(); err != nil {
		l.g.refusedConn(conn, name.ReasonClientTLS, err)
		_ = conn.Close()
		return nil
	}
	if o.read[0] != balancer.FirstByte {
		return o
	}
	o.keeps, o.fleet = false, nil
	raw, err := balancer.ReadPassed(o)
	if err == nil {
		err = l.passedOn(o, raw, h)
	}
	if err == nil {
		return o
	}
	reason := name.ReasonBadRequest
	if errors.Is(err, errCrowded) || errors.Is(err, errCrowdedHost) {
		reason = name.ReasonLimit
	}
	l.g.refusedConn(o, reason, err)
	socket.Reset(conn)
	return nil
}

// errCrowdedHost reports a host that passes too many connections on.
var errCrowdedHost = errors.New("the host of the fleet passes too many connections on")

// passedOn counts a connection that another host passes on for its visitor, and for the host.
func (l *listener) passedOn(o *opening, raw []byte, h *held) error {
	p, err := l.g.Fleet.Open(raw)
	if err != nil {
		return err
	}
	o.from = net.TCPAddrFromAddrPort(p.From)
	if !l.g.arrived.acquire(p.Sender, netip.Prefix{}) {
		return errCrowdedHost
	}
	network := peernet.NetworkOf(o.from)
	l.mu.Lock()
	defer l.mu.Unlock()
	h.sender, h.passed, h.mode = p.Sender, p.Name, p.Mode // release returns the place
	if p.Mode == balancer.ModeHTTP && p.From.Addr().IsLoopback() {
		network = netip.Prefix{} // a reverse proxy of the other host, which has not named the visitor: see [listener.network]
	}
	if !l.placeLocked(network, time.Now()) {
		return errCrowded
	}
	if h.gone {
		h.gone = false // its place was given to another; this one is new
	} else {
		l.places.release("", h.network)
	}
	h.network = network
	return nil
}

// passOn returns the function that passes a connection on to the host that has its box, until it has ended.
func (l *listener) passOn(o *opening, h *held) (serve func()) {
	network := l.counted(h)
	if !l.g.passing.acquire(o.owner, network) {
		return l.notPassed(o, name.ReasonLimit, errCrowded)
	}
	if !l.g.places.acquire("", network) { // for the descriptor of the second connection
		l.g.passing.release(o.owner, network)
		return l.notPassed(o, name.ReasonLimit, errCrowded)
	}
	h.begin() // a stop lets it run, like raw TCP
	return func() {
		defer l.g.passing.release(o.owner, network)
		defer l.g.places.release("", network)
		l.pass(o, h)
	}
}

// notPassed refuses a connection that cannot be passed on, with a TLS alert (RFC 8446, 6.2: internal_error).
func (l *listener) notPassed(o *opening, reason name.Reason, err error) (serve func()) {
	l.g.refusedConn(o, reason, err)
	_ = o.Conn.SetWriteDeadline(time.Now().Add(socket.LingerTime))
	_, _ = o.Conn.Write([]byte{21, 3, 3, 0, 2, 2, 80})
	_ = o.Conn.Close()
	return nil
}

// pass passes a connection on until it has ended.
func (l *listener) pass(o *opening, h *held) {
	e := audit.Event{Time: time.Now(), Stage: policy.StageURL, Protocol: policy.TCP, Name: o.host, Verdict: policy.Allow, Action: audit.ActionSplice, Reason: name.ReasonURL}
	from, _ := netip.ParseAddrPort(o.RemoteAddr().String()) // zero: unknown
	to, _ := netip.ParseAddrPort(o.Conn.LocalAddr().String())
	e.Peer = from.Addr().Unmap()
	visitor, ok := socket.TCP(o.Conn)
	if !ok {
		_ = o.Conn.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.g.DialTimeout)
	owner, err := l.g.Fleet.Dial(ctx, o.owner, o.host, from, to, o.read)
	cancel()
	if err != nil {
		l.notPassed(o, name.ReasonUnreachable, err)
		return
	}
	o.read = nil
	_ = visitor.SetDeadline(time.Time{})
	var in, out atomic.Int64
	ended := make(chan error, 1)
	start, cut := l.g.Fleet.Splice(visitor, owner, o.owner, &in, &out, func(err error) { ended <- err })
	if l.cutBy(o, h, cut) {
		start()
	} else {
		cut()
	}
	if err := <-ended; err != nil && !errors.Is(err, io.EOF) {
		e.Error = err.Error()
	}
	if l.g.Audit != nil {
		e.BytesIn, e.BytesOut, e.Duration = out.Load(), in.Load(), time.Since(e.Time)
		l.g.Audit.Record(e)
	}
}

// cutBy sets the function that ends a connection from now on. It reports false if the connection must end now.
func (l *listener) cutBy(o *opening, h *held, cut func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.cut = cut
	return !l.closed && !h.leaves
}
