package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"boxgate/audit"
	"boxgate/ingress/balancer"
	"boxgate/ingress/h2c"
	"boxgate/ingress/local"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/relay"
)

// Ingress serves public URLs. Safe for concurrent use.
type Ingress struct {
	core
	drain context.CancelFunc // ends draining

	mu        sync.Mutex
	listeners []*listener
	boxes     *listener // for connections of boxes; nil: they are closed
	closed    bool
}

// New makes an Ingress; its Serve methods start it.
func New(cfg Config) (*Ingress, error) {
	if cfg.URLs == nil {
		return nil, errors.New("ingress: URLs is required")
	}
	if err := checkAccounts(cfg.Accounts); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	cfg.ReadHeaderTimeout = cmp.Or(cfg.ReadHeaderTimeout, 10*time.Second)
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, 2*time.Minute)
	cfg.MaxHeaderBytes = cmp.Or(cfg.MaxHeaderBytes, 64<<10)
	cfg.BodyTimeout = cmp.Or(cfg.BodyTimeout, time.Minute)
	cfg.ResponseTimeout = cmp.Or(cfg.ResponseTimeout, 5*time.Minute)
	cfg.Connections = cmp.Or(cfg.Connections, 4096)
	cfg.Requests = cmp.Or(cfg.Requests, 4096)
	cfg.RequestRate = cmp.Or(cfg.RequestRate, 2000)
	cfg.FailedCredentials = cmp.Or(cfg.FailedCredentials, 20)
	cfg.SessionTime = cmp.Or(cfg.SessionTime, 12*time.Hour)
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, t Target) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", t.Addr.String())
		}
	}
	cfg.ForwardFields, cfg.TokenFields = lowered(cfg.ForwardFields), lowered(cfg.TokenFields)
	g := &Ingress{core: core{Config: cfg, heads: newHeads(), transport: cfg.HSTS.value(), grace: cutTime, wakeWait: wakeWait, halfOpen: halfOpenTime, arrival: arrivalTime}}
	g.exchanges.most = exchangesMost
	g.places.most = cfg.Requests
	g.upstreams.open(max(1, cfg.Requests/6))
	g.inside.most = max(1, cfg.Requests/4)
	g.own.most = max(1, cfg.Requests/6)
	g.passing.most, g.arrived.most = max(1, cfg.Requests/2), max(1, cfg.Connections*3/4)
	g.local.Panicked = func() { g.panickedIn("") }
	g.http2, g.http2Places.most = h2c.NewPool(cfg.DialTimeout, max(1, cfg.Requests/6), boxOf, func(to incarnation, _ any) { g.panickedIn(to.box) }), http2Streams
	g.tallies.failures, g.tallies.window = cfg.FailedCredentials, time.Minute
	g.tallies.refill, g.tallies.burst = rate.Limit(cfg.RequestRate), 2*cfg.RequestRate
	g.draining, g.drain = context.WithCancel(context.Background())
	return g, nil
}

// ServeTLS serves public URLs over HTTPS, HTTP/1.1 and HTTP/2, until Shutdown. Then it returns nil.
func (g *Ingress) ServeTLS(ln net.Listener) error {
	if g.GetCertificate == nil {
		return errors.New("ingress: GetCertificate is required for HTTPS")
	}
	settings := tlsConfig(g.GetCertificate)
	if g.Validation != "" {
		settings.NextProtos = append(settings.NextProtos, g.Validation)
	}
	settings.GetConfigForClient = g.configOf(settings)
	defer keepTicketsFresh(settings)()
	boxes := &listener{tls: settings}
	if g.add(boxes, max(1, g.Connections/4)) {
		g.mu.Lock()
		g.boxes = boxes
		g.mu.Unlock()
	}
	return g.listen(&listener{ln: ln, tls: settings})
}

// Visit serves a connection of a box to the public URL of a host over TLS, as [Ingress.ServeTLS] serves those of others. It
// returns when the connection has ended. The connection can reach no other host. All boxes together get a quarter as many
// connections and requests as other visitors, and one address of a box a quarter of that. Without ServeTLS, the connection is
// closed.
func (g *Ingress) Visit(conn net.Conn, host string) {
	g.mu.Lock()
	l := g.boxes
	g.mu.Unlock()
	if l == nil {
		_ = conn.Close()
		return
	}
	l.visit(conn, host)
}

// ServePlain serves public URLs over plain HTTP. Credentials would be sent in the clear, so the listener must be on a
// loopback address.
func (g *Ingress) ServePlain(ln net.Listener) error {
	addr, ok := ln.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsLoopback() {
		return errors.New("ingress: plain HTTP is served on a loopback address only, not on " + ln.Addr().String())
	}
	return g.listen(&listener{ln: ln})
}

// ServeRedirect answers plain HTTP with redirects to the HTTPS URL at httpsPort. challenge, if not nil, is tried first (ACME
// HTTP-01).
func (g *Ingress) ServeRedirect(ln net.Listener, httpsPort uint16, challenge Challenge) error {
	return g.listen(&listener{ln: ln, move: &redirection{httpsPort, challenge}})
}

// listen serves a listener until Shutdown.
func (g *Ingress) listen(l *listener) error {
	if !g.add(l, g.Connections) {
		_ = l.ln.Close()
		return http.ErrServerClosed
	}
	if err := l.run(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// add prepares a listener for at most that many connections. It reports false after Shutdown has begun.
func (g *Ingress) add(l *listener, most int) bool {
	l.g, l.conns = g, map[net.Conn]*held{}
	l.slots, l.stopping = make(chan struct{}, most), make(chan struct{})
	l.places.most = most
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.listeners = append(g.listeners, l)
	return true
}

// Held returns the number of open accepted connections of a listener that was passed to a Serve method, and their limit.
func (g *Ingress) Held(ln net.Listener) (open, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.listeners {
		if l.ln == ln {
			return l.open(), cap(l.slots)
		}
	}
	return 0, 0
}

// Retire stops accepting. Each accepted connection is served and ends after its next response. The listeners' sockets stay
// usable for another process that shares them. Retire returns when it has stopped accepting; Shutdown ends the rest.
func (g *Ingress) Retire() {
	g.mu.Lock()
	listeners := g.listeners
	g.mu.Unlock()
	for _, l := range listeners {
		l.retire()
	}
	g.drain()
}

// Shutdown stops listening, waits for the first requests of new connections and for running requests until ctx ends, then cuts
// the rest, including WebSockets.
func (g *Ingress) Shutdown(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	listeners := g.listeners
	g.mu.Unlock()
	g.drain()
	for _, l := range listeners {
		l.finish()
	}
	for _, l := range listeners {
		l.await(ctx)
	}
	for _, l := range listeners {
		l.close()
	}
	err := g.active.drain(ctx)
	for _, l := range listeners {
		l.wait(ctx)
	}
	g.local.Close()
	g.closeIdle()
	g.poller.Close()
	return err
}

// CloseURL cuts every request and WebSocket of a URL, and returns when they have ended. Call it after Lookup has dropped the
// URL or returns its new credentials, so that later requests are checked against those. The caller must not hold a lock that
// Lookup or Wake takes, as a request that is calling them could not end.
func (g *Ingress) CloseURL(id string) {
	g.active.cut(func(r *request) bool { return r.target.ID == id })
	g.closeIdle()
}

// ClosePort is [Ingress.CloseURL] for the requests of one port, where targets of several ports have the same ID.
func (g *Ingress) ClosePort(id string, port uint16) {
	g.active.cut(func(r *request) bool { return r.target.ID == id && r.target.Addr.Port() == port })
	g.closeIdle()
}

// closeIdle closes the unused connections to boxes.
func (g *Ingress) closeIdle() {
	g.upstreams.CloseIdle(0)
	g.http2.CloseIdle()
}

// CloseBox is [Ingress.CloseURL] for every URL of a box.
func (g *Ingress) CloseBox(box policy.BoxID) {
	g.active.cut(func(r *request) bool { return r.target.Box == box })
	g.closeIdle()
}

// URLs finds public URLs. Lookup is called twice for every request, concurrently, and must be fast.
type URLs interface {
	// Lookup finds the target of a host name, given in lower case without port and trailing dot.
	Lookup(host string) (Target, bool)
}

// Boxes are the boxes behind public URLs, which may sleep. All but Wake must be fast. Safe for concurrent use.
type Boxes interface {
	// Enter keeps a box awake for a request that has passed all checks, and reports whether its port can be dialled. If not,
	// Wake is called. Each Enter needs a Leave.
	Enter(box policy.BoxID, port uint16) (awake bool)
	// Leave ends an Enter: the request has ended, or now relays bytes without keeping the box awake.
	Leave(box policy.BoxID)
	// Moved is called when bytes pass after Leave. A visitor's bytes wake a box that has fallen asleep since.
	Moved(box policy.BoxID, byVisitor bool)
	// Wake returns when a port of a box can be dialled, or an error. There is one call at a time for a port.
	Wake(ctx context.Context, box policy.BoxID, port uint16) error
}

// Config is what [New] needs. URLs is required, and GetCertificate for [Ingress.ServeTLS].
type Config struct {
	URLs URLs
	// GetCertificate returns the certificate of a server name. It is called before any check of the client, so it must not
	// issue certificates for names that are not URLs.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Validation is the ALPN protocol with which a certificate authority validates a host (TLS-ALPN-01), using the certificate
	// from GetCertificate. A connection that negotiates it is closed after the handshake. "": no validation.
	Validation string
	// Dial connects to the target's address and nowhere else. nil: plain TCP.
	Dial func(ctx context.Context, t Target) (net.Conn, error)
	// Boxes wakes sleeping boxes and keeps those in use awake. nil: boxes never sleep.
	Boxes Boxes
	Audit audit.Recorder // nil: events are not recorded
	Log   *zap.Logger    // nil: no logging

	// Connections limits the open connections of visitors at each listener. Requests limits the forwarded requests, each of
	// which may take a connection to a box; up to a third as many idle connections are kept. One network of visitors gets a
	// quarter at most, one box half. 0: 4096.
	Connections, Requests int

	// Balancers are the load balancers in front of the gateway. Their connections, and no others, must begin with a header of
	// the PROXY protocol, which contains the visitor's address.
	Balancers balancer.List

	// Fleet passes connections on to other hosts of a fleet; nil: there are none.
	Fleet Fleet

	HSTS HSTS

	// ForwardFields are fields that visitors may send to boxes although applications may read a visitor's identity from them.
	// The fields that the gateway sets are never included.
	ForwardFields []string

	// TokenFields are fields in which visitors may send the bearer token of a URL, alone, instead of in Authorization. Boxes do not get
	// them, whether or not a URL has a token.
	TokenFields []string

	// RequestRate is the sustained number of requests per second from one network of visitors to one URL. The burst is twice
	// that. 0: 2000.
	RequestRate int
	// FailedCredentials is how many wrong credentials from one network a URL refuses in a minute. Until the minute is over,
	// further credentials are answered with 429 without a check. 0: 20.
	FailedCredentials int

	// SessionTime is how long a browser stays signed in. 0: 12 h.
	SessionTime time.Duration
	// Accounts lets visitors sign in with their accounts at an identity provider; nil: no provider.
	Accounts *Accounts
	// SignOut stores the ended sessions of a target. nil: they are only kept until the gateway stops.
	SignOut func(Target) error

	DialTimeout       time.Duration // 0: 10 s
	ReadHeaderTimeout time.Duration // 0: 10 s
	IdleTimeout       time.Duration // of a connection without a request; 0: 2 min
	MaxHeaderBytes    int           // 0: 64 KiB, which is also the maximum
	// BodyTimeout limits how long a client may pause within a body before its box has answered, and how long it may leave a
	// response unread. 0: 1 min. WebSockets have no such limit.
	BodyTimeout time.Duration
	// ResponseTimeout is how long a box may take to answer a complete request. 0: 5 min.
	ResponseTimeout time.Duration
}

// core is the state that the connections of clients share.
type core struct {
	Config
	upstreams upstreams
	poller    relay.Poller // of connections to boxes
	http2     *h2c.Pool[incarnation]
	places    places // of requests
	exchanges places // of code exchanges at the identity provider
	inside    places // of the requests of boxes, each of which also has one of places
	own       places // of the requests that this process serves, likewise
	passing   places // of connections and requests that are passed on, by host of the fleet; each also has one of places
	arrived   places // of connections that other hosts pass on to this one, by host
	local     local.Server
	// http2Places are for requests to applications that speak HTTP/2, counted by box.
	http2Places places
	tallies     tallies
	wakers      wakers
	wakeWait    time.Duration // the constant wakeWait; tests change it
	grace       time.Duration // the constant cutTime, likewise
	halfOpen    time.Duration // the constant halfOpenTime, likewise
	arrival     time.Duration // the constant arrivalTime, likewise
	active      active
	streams     sync.Pool       // of *stream
	heads       *memory.Account // the memory of HTTP/2 heads
	transport   string          // value of Strict-Transport-Security, or ""
	draining    context.Context // ends when the ingress stops
}

const (
	// headsAll is the memory for header blocks in several frames, of all connections together.
	headsAll = 64 << 20
)

func newHeads() *memory.Account { return memory.New(headsAll, headsAll).Account("visitors") }

// HSTS makes browsers use only HTTPS for the host of a public URL (RFC 6797). It is sent with every response over HTTPS,
// including the gateway's own. A box's Strict-Transport-Security is dropped. The zero value sends no field.
type HSTS struct {
	MaxAge            time.Duration // how long browsers remember it, in whole seconds
	IncludeSubdomains bool          // it also applies to hosts below the URL's
}

// value returns the value of the field, or "".
func (h HSTS) value() string {
	seconds := int64(h.MaxAge / time.Second)
	if seconds <= 0 {
		return ""
	}
	value := "max-age=" + strconv.FormatInt(seconds, 10)
	if h.IncludeSubdomains {
		value += "; includeSubDomains"
	}
	return value
}

// hstsName is the field's name in HTTP/2.
const hstsName = "strict-transport-security"
