package ingress

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/ingress/balancer"
	"boxgate/internal/peernet"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/relay"
	"boxgate/relay/h1"
)

// listener accepts the connections of clients, which speak HTTP/1.x or HTTP/2.
type listener struct {
	g   *Ingress
	ln  net.Listener // nil: connections are passed to visit
	tls *tls.Config  // nil: plain HTTP
	// move answers requests that are not forwarded; nil: requests are forwarded.
	move *redirection

	slots    chan struct{} // one element for each open connection; run accepts no more while it is full
	stopping chan struct{} // closed when run must no longer wait for a slot

	mu     sync.Mutex
	conns  map[net.Conn]*held
	closed bool
	// retired is set when the listener no longer accepts. Accepted connections are still served.
	retired   bool
	accepting sync.WaitGroup  // one while run runs; Add under mu and only while not retired
	handlers  socket.Handlers // of connections, from enter to release; closed together with closed
	places    places          // of connections
}

// network returns the network that a connection is counted for. Connections over plain HTTP are not counted: they come over
// loopback, where all visitors of a reverse proxy share one address. A load balancer's are not counted until its header has
// named the visitor.
func (l *listener) network(conn net.Conn) netip.Prefix {
	if l.tls == nil && l.move == nil || l.g.Balancers.Has(conn) {
		return netip.Prefix{}
	}
	return peernet.NetworkOf(conn.RemoteAddr())
}

// visitorOf returns the connection with the visitor's address, which for a connection of a load balancer is in its header. If
// there is no valid header, or the visitor has too many connections, it closes the connection and returns nil.
func (l *listener) visitorOf(conn net.Conn, h *held) net.Conn {
	if !l.g.Balancers.Has(conn) {
		return conn
	}
	told, err := balancer.Accept(conn, time.Now().Add(l.g.ReadHeaderTimeout))
	if err != nil {
		l.g.refusedConn(conn, name.ReasonBadRequest, err)
		socket.Reset(conn)
		return nil
	}
	network := peernet.NetworkOf(told.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.placeLocked(network, time.Now()) {
		l.g.refusedConn(told, name.ReasonLimit, errCrowded)
		_ = conn.Close()
		return nil
	}
	l.places.release("", h.network)
	h.network = network
	return told
}

// run accepts until the listener is closed.
func (l *listener) run() error {
	l.mu.Lock()
	if l.retired {
		l.mu.Unlock()
		return http.ErrServerClosed
	}
	l.accepting.Add(1)
	l.mu.Unlock()
	defer l.accepting.Done()
	var pause time.Duration
	for {
		if !l.takeSlot() {
			_ = l.ln.Close()
			return http.ErrServerClosed
		}
		conn, err := l.ln.Accept()
		if err != nil {
			l.freeSlot()
		}
		switch {
		case err == nil:
			pause = 0
			l.start(conn)
		case temporary(err): // also while stopping: other connections may wait in the queue
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			l.g.Log.Warn("public URLs: accept failed, it is tried again", zap.Error(err))
			time.Sleep(pause)
		case l.isClosed():
			return http.ErrServerClosed
		default:
			return err
		}
	}
}

// takeSlot waits for a free slot: visitors beyond the limit wait in the kernel's queue instead of being refused. While the
// listener stops, takeSlot does not wait, but takes free slots for the connections already in the queue, and reports false
// when all are taken.
func (l *listener) takeSlot() bool {
	select {
	case l.slots <- struct{}{}:
		return true
	default:
	}
	select {
	case l.slots <- struct{}{}:
		return true
	case <-l.stopping:
		return false
	}
}

func (l *listener) freeSlot() { <-l.slots }

// temporary reports whether accepting failed for lack of resources, or because of one connection.
func temporary(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed || l.retired
}

// retire stops accepting, and returns when the last accepted connection has been counted. Connections still in the queue are
// left to another process that shares the socket.
func (l *listener) retire() { l.closeWith(func(ln net.Listener) { _ = ln.Close() }) }

// finish is retire for a socket that no other process shares: it accepts all connections in the queue first.
func (l *listener) finish() { l.closeWith(socket.Drain) }

// closeWith retires the listener with end, which must make Accept fail soon.
func (l *listener) closeWith(end func(net.Listener)) {
	l.mu.Lock()
	l.retired = true
	l.stopLocked()
	if l.ln != nil {
		end(l.ln)
	}
	l.mu.Unlock()
	l.accepting.Wait()
}

// stopLocked ends the wait for a slot.
func (l *listener) stopLocked() {
	select {
	case <-l.stopping:
	default:
		close(l.stopping)
	}
}

// start serves a connection, which has a slot, in its own goroutine.
func (l *listener) start(conn net.Conn) {
	h := l.enter(conn, l.network(conn), l.freeSlot)
	if h == nil {
		return
	}
	go h.own.Run(func() {
		told := l.visitorOf(conn, h)
		if told != nil {
			told = l.openingFor(told, h)
		}
		if told == nil {
			return
		}
		if serve := l.accept(told, h); serve != nil {
			// A new goroutine: the stack of this one has grown in the handshake, and would keep its size as long as the
			// connection lives.
			h.own.Go(serve)
		}
	})
}

// enter counts a connection, and tracks it until [listener.release]. freeSlot returns the connection's slot. If all places are
// taken, enter closes the connection, frees the slot and returns nil.
func (l *listener) enter(conn net.Conn, network netip.Prefix, freeSlot func()) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.closed || !l.placeLocked(network, now) {
		if !l.closed {
			l.g.refusedConn(conn, name.ReasonLimit, errCrowded)
		}
		_ = conn.Close()
		freeSlot()
		return nil
	}
	h := &held{own: l.handlers.Track(nil), freeSlot: freeSlot, network: network, first: make(chan struct{}), since: now, until: now.Add(l.g.arrival)}
	if l.places.scarce() {
		l.giveWayLocked(now)
	}
	h.own.End = func(panicked any) { l.ended(conn, panicked) }
	l.conns[conn] = h
	return h
}

// sampled is how many connections giveWayLocked examines. A box or network with a large share of them is in the sample.
const sampled = 256

// leastWeight is the share of its limit that a box or network must hold before one of its connections is ended.
const leastWeight = 0.25

// newTime protects a new connection without a request from being ended, as its first request may be on its way.
const newTime = time.Second

// giveWayLocked ends one connection of the box or network that holds the largest share of its limit, so that new visitors get
// a place while others keep theirs for any time. Ties go to the network with the larger share, then to a connection without
// any request, then to an idle one, then to the oldest.
func (l *listener) giveWayLocked(now time.Time) {
	var chosen net.Conn
	var latest standing
	n := 0
	for conn, h := range l.conns {
		if n++; n > sampled {
			break
		}
		if h.stays(now) {
			continue
		}
		c := l.standingOf(h)
		if c.weight >= leastWeight && (chosen == nil || c.yieldsTo(latest)) {
			chosen, latest = conn, c
		}
	}
	if chosen == nil {
		return
	}
	l.leaveLocked(chosen)
}

// leaveLocked ends a connection in favour of others. It keeps its slot until its goroutine, which notices, has released it.
func (l *listener) leaveLocked(conn net.Conn) {
	h := l.conns[conn]
	h.leaves = true
	l.g.refusedConn(conn, name.ReasonLimit, errGaveWay)
	if h.cut != nil {
		h.cut()
		return
	}
	socket.Abort(conn)
}

// placeLocked takes a place for a connection from a network, and reports whether there was one. In a larger network around it that may
// have no more, the connection gets the place of another one from there: its customer, or one of its customers, has all of its places
// already, and newcomers from there would be refused as long as those last.
func (l *listener) placeLocked(network netip.Prefix, now time.Time) bool {
	if l.places.acquire("", network) {
		return true
	}
	level := l.places.crowded(network)
	if level == 0 {
		return false
	}
	var chosen net.Conn
	var latest rank
	n := 0
	for conn, h := range l.conns {
		if n++; n > sampled {
			break
		}
		if r, ok := l.places.rankIn(level, network, h.network); ok && !h.stays(now) {
			if r.use, r.since = h.use(), h.since; r.yieldsToNewcomer() && (chosen == nil || r.before(latest)) {
				chosen, latest = conn, r
			}
		}
	}
	if chosen == nil {
		return false
	}
	h := l.conns[chosen]
	l.places.exchange(h.box, h.network, network)
	h.gone = true
	l.leaveLocked(chosen)
	return true
}

// standing ranks a connection for giveWayLocked.
type standing struct {
	weight, network float64 // the larger share of its box's and its network's, and the network's
	use             int     // of [held.use]
	since           time.Time
}

func (l *listener) standingOf(h *held) standing {
	c := standing{since: h.since, use: h.use()}
	c.weight, c.network = l.places.weight(h.box, h.network)
	return c
}

// yieldsTo reports whether c gives way before other.
func (c standing) yieldsTo(other standing) bool {
	switch {
	case c.weight != other.weight:
		return c.weight > other.weight
	case c.network != other.network:
		return c.network > other.network
	case c.use != other.use:
		return c.use < other.use
	}
	return c.since.Before(other.since)
}

// errGaveWay reports a connection that was ended in favour of others.
var errGaveWay = errors.New("places became scarce, and the box or the address had many connections open")

// visit serves a connection of a box to a host, until it has ended. It ignores headers of load balancers, whatever the
// address. Each address counts separately, as the boxes share one network.
func (l *listener) visit(conn net.Conn, host string) {
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String()) // zero: unknown
	at := from.Addr().Unmap()
	h := l.enter(conn, netip.PrefixFrom(at, at.BitLen()), func() {})
	if h == nil {
		return
	}
	h.only = host
	h.own.Run(func() {
		if serve := l.accept(conn, h); serve != nil {
			serve()
		}
	})
}

// ended releases a connection whose goroutine has returned or panicked: a panic ends this connection only.
func (l *listener) ended(conn net.Conn, panicked any) {
	if panicked != nil {
		l.g.Log.Error("panic in a connection to a public URL", zap.ByteString("stack", debug.Stack()))
		_ = conn.Close()
	}
	l.release(conn)
}

// release closes a connection's socket and returns its slot and places. Each connection that was entered is released exactly
// once, however its socket was closed.
func (l *listener) release(conn net.Conn) {
	socket.Abort(conn) // usually closed already
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.conns[conn]
	h.arrive()
	h.freeSlot()
	if !h.gone {
		l.places.release(h.box, h.network)
	}
	if h.sender != "" {
		l.g.arrived.release(h.sender, netip.Prefix{})
	}
	delete(l.conns, conn)
}

// open returns the number of open connections.
func (l *listener) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// accept performs the TLS handshake, if there is one. It returns the function that serves the connection, or nil if the
// connection has ended.
func (l *listener) accept(conn net.Conn, h *held) (serve func()) {
	tcp, ok := socket.TCP(conn)
	if !ok {
		_ = conn.Close()
		return nil
	}
	c := &client{Client: relay.Client{Conn: conn}, tcp: tcp, held: h, move: l.move}
	c.g, c.visitor, c.client = &l.g.core, new(visitor), c
	c.visitor.network, c.visitor.inside = l.counted(h), h.only != ""
	c.visitor.peer, _, _ = net.SplitHostPort(conn.RemoteAddr().String())
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String()) // zero: unknown
	c.visitor.addr = from.Addr().Unmap()
	version := ""
	if l.tls != nil {
		secure := l.handshake(conn, l.settings(h))
		if secure == nil {
			if o, ok := conn.(*opening); ok && o.owner != "" {
				return l.passOn(o, h)
			}
			return nil
		}
		state := secure.ConnectionState()
		version = state.NegotiatedProtocol
		c.Conn, c.visitor.secure, c.visitor.sni = secure, true, state.ServerName
		if h.sender != "" {
			l.g.vouched(c.visitor, h, state)
		}
	}
	if version != "" && version == l.g.Validation || !h.serves(bareHost(c.visitor.sni)) {
		_ = conn.Close()
		return nil
	}
	if !l.named(c.visitor.sni, h) {
		l.g.refusedConn(conn, name.ReasonLimit, errCrowdedURL)
		_ = conn.Close()
		return nil
	}
	if l.tls != nil && !h.mode.Requests() && l.g.isRaw(c.visitor.sni, version) {
		h.begin() // a stop lets it run until requests are cut
		return newPassage(&l.g.core, c.visitor, c.Conn).run
	}
	if version == "h2" {
		h.busy.Store(true) // a stop drains it, and it ends after its requests
		return (&session{&l.g.core, c.visitor, c.Conn, h}).run
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.cut, c.out = c.cutNow, &c.Out
	c.In, c.Stall, c.Cuts = h1.Reader{Source: c.Conn}, l.g.BodyTimeout, c
	return c.serve
}

// counted returns the network that a connection is counted for.
func (l *listener) counted(h *held) netip.Prefix {
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.network
}

// named counts a connection for the box of the public URL named in TLS, and reports whether the box may have one more. The
// connection's requests can be for no other box.
func (l *listener) named(sni string, h *held) bool {
	if sni == "" {
		return true
	}
	t, ok := l.g.URLs.Lookup(bareHost(sni))
	if !ok || t.Box == "" {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.gone || !l.places.name(string(t.Box)) {
		return false
	}
	h.box = string(t.Box)
	return true
}

// longestHello limits a visitor's ClientHello. Those from browsers are below 4 KiB.
const longestHello = 16 << 10

// handshake performs the TLS handshake. If it fails, it closes the connection and returns nil.
func (l *listener) handshake(conn net.Conn, settings *tls.Config) *socket.Terminated {
	secure := socket.Terminate(conn, longestHello, settings)
	_ = conn.SetDeadline(time.Now().Add(l.g.ReadHeaderTimeout))
	err := secure.HandshakeContext(context.Background())
	if err == nil {
		secure.Established()
		_ = conn.SetDeadline(time.Time{})
		return secure
	}
	if o, ok := conn.(*opening); ok && o.owner != "" {
		return nil
	}
	l.g.refusedConn(conn, name.ReasonClientTLS, err)
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) && plain.Conn != nil && looksLikeHTTP(plain.RecordHeader[:]) {
		_, _ = io.WriteString(plain.Conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\nThis port speaks HTTPS.\n")
	}
	_ = conn.Close()
	return nil
}

// looksLikeHTTP reports whether a connection begins like an HTTP request.
func looksLikeHTTP(b []byte) bool {
	for _, m := range []string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO"} {
		if string(b) == m {
			return true
		}
	}
	return false
}

// close stops accepting, and closes the connections without a request in progress.
func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.handlers.Close()
	l.stopLocked()
	if l.ln != nil {
		_ = l.ln.Close()
	}
	for conn, h := range l.conns {
		if !h.busy.Load() {
			_ = conn.Close()
		}
	}
}

// wait waits until all connections have ended. At the end of ctx it closes them.
func (l *listener) wait(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.handlers.Wait()
	}()
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	l.mu.Lock()
	for conn, h := range l.conns {
		if h.cut != nil {
			h.cut()
			continue
		}
		_ = conn.Close()
	}
	l.mu.Unlock()
	<-ended
}

// gone reports whether the client has closed its connection, and so no longer wants the response. A client that has only
// finished sending (a half-closed connection without TLS) is not gone.
func (c *client) gone() bool {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err != nil || info.State == unix.BPF_TCP_CLOSE || (c.visitor.secure || c.visitor.sender != nil) && info.State == unix.BPF_TCP_CLOSE_WAIT
	})
	return gone
}

// errCrowded reports an address with too many connections.
var errCrowded = errors.New("the address has too many connections")

// errCrowdedURL reports a box whose public URLs have too many connections.
var errCrowdedURL = errors.New("the public URLs of the box have too many connections")

// refusedConn records a connection that ends before its first request, for example because its TLS handshake failed.
func (g *core) refusedConn(conn net.Conn, reason name.Reason, err error) {
	if g.Audit == nil {
		return
	}
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String()) // zero: unknown
	g.Audit.Record(audit.Event{
		Time: time.Now(), Stage: policy.StageURL, Protocol: policy.TCP, Peer: from.Addr().Unmap(), Verdict: policy.Deny,
		Action: audit.ActionRefuse, Reason: reason, Error: err.Error(),
	})
}

// arrivalTime is how long a stop waits for the first request of a connection, counted from its accept: a visitor who found the
// gateway listening is answered.
const arrivalTime = time.Second

// held is an open connection of a listener.
type held struct {
	own      *socket.Owned // ended by release
	freeSlot func()        // returns its slot to the listener; called once, by release
	busy     atomic.Bool   // a request is in progress; always set for HTTP/2 and raw TCP
	network  netip.Prefix  // the connection is counted for it; guarded by the listener's mu
	box      string        // the box of the URL named in TLS, likewise; "": unknown
	since    time.Time     // when it was accepted
	leaves   bool          // leaveLocked has ended the connection; guarded by the listener's mu
	gone     bool          // another connection has its place; guarded by the listener's mu
	only     string        // the only host that TLS may name, for a box of this gateway; "": any
	passed   string        // the only host that TLS may name, for a visitor whom another host of the fleet passes on; "": any
	sender   string        // that other host
	mode     balancer.Mode // of its connection
	cut      func()        // ends a connection that is passed on; nil: the connection is closed. Guarded by the listener's mu

	asked atomic.Bool   // a request has begun, or the connection has ended
	first chan struct{} // closed when asked is set
	until time.Time     // when a stop no longer waits for first
}

// stays reports whether a connection is not ended in favour of others: it has been already, or is new. The caller holds the listener's mu.
func (h *held) stays(now time.Time) bool {
	return h.leaves || !h.asked.Load() && now.Sub(h.since) < newTime
}

// use returns 0 for a connection that never had a request, 1 for an idle one, and 2 while it has one.
func (h *held) use() int {
	switch {
	case !h.asked.Load():
		return 0
	case h.busy.Load():
		return 2
	}
	return 1
}

// serves reports whether the connection may be for a host.
func (h *held) serves(host string) bool {
	return (h.only == "" || h.only == host) && (h.passed == "" || h.passed == host)
}

// begin notes that a request has begun. A stop lets it finish.
func (h *held) begin() {
	h.busy.Store(true)
	h.arrive()
}

// arrive notes that a request has begun, or that the connection ended without one.
func (h *held) arrive() {
	if !h.asked.Load() && h.asked.CompareAndSwap(false, true) {
		close(h.first)
	}
}

// await waits for the first request until h.until or the end of ctx.
func (h *held) await(ctx context.Context) {
	late := time.NewTimer(time.Until(h.until))
	defer late.Stop()
	select {
	case <-h.first:
	case <-late.C:
	case <-ctx.Done():
	}
}

// drained returns a context that ends after stop, once the first request has arrived or its time is over. release must be
// called to free the context.
func (h *held) drained(stop context.Context) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	forget := context.AfterFunc(stop, func() {
		h.await(ctx)
		cancel()
	})
	return ctx, func() {
		forget()
		cancel()
	}
}

// await waits for the first request of each connection, or until its time is over. Call it when the listener no longer
// accepts.
func (l *listener) await(ctx context.Context) {
	for _, h := range l.silent() {
		h.await(ctx)
	}
}

// silent returns the connections without a first request.
func (l *listener) silent() (list []*held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.conns {
		if !h.asked.Load() {
			list = append(list, h)
		}
	}
	return list
}

const (
	// A new key encrypts session tickets every ticketKeyTime, and ticketKeys keys are accepted. So a ticket is valid for a day
	// at most, as is a stolen key.
	ticketKeyTime = 8 * time.Hour
	ticketKeys    = 3
)

// tlsConfig returns the TLS settings for visitors: TLS 1.3, and TLS 1.2 only with forward secrecy and authenticated encryption
// (RFC 9325, 4.2).
func tlsConfig(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		GetCertificate: certificate,
		NextProtos:     []string{"h2", "http/1.1"},
	}
}

// keepTicketsFresh rotates the keys of session tickets until stop is called.
func keepTicketsFresh(c *tls.Config) (stop func()) {
	var keys [][32]byte
	renew := func() {
		var key [32]byte
		_, _ = rand.Read(key[:]) // never fails
		keys = append([][32]byte{key}, keys[:min(len(keys), ticketKeys-1)]...)
		c.SetSessionTicketKeys(keys)
	}
	renew()
	ended := make(chan struct{})
	go func() {
		next := time.NewTicker(ticketKeyTime)
		defer next.Stop()
		for {
			select {
			case <-next.C:
				renew()
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended) }
}
