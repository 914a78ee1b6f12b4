package proxy

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elazarl/goproxy"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/har"
	"boxgate/proxy/live"
	"boxgate/proxy/origin"
	"boxgate/proxy/postgres"
	"boxgate/proxy/recovery"
	"boxgate/proxy/route"
	"boxgate/proxy/tunnel"
	"boxgate/proxy/usage"
)

// Boxes finds the box with a source address, or nil. Safe for concurrent use.
type Boxes interface {
	BoxByAddr(netip.Addr) *policy.Box
}

// Resolver resolves names for a box and remembers its answers.
type Resolver = route.Resolver

// Leaves issues the certificates used to terminate TLS from a box. Safe for concurrent use.
type Leaves interface {
	// LeafFor returns a certificate for the name, with a kind of key that the client supports.
	LeafFor(context.Context, *tls.ClientHelloInfo, policy.BoxID, name.Name) (*tls.Certificate, error)
}

// SSHKeys returns the host keys that the gateway presents to boxes as an SSH server. Safe for concurrent use.
type SSHKeys interface {
	SSHKey(policy.BoxID) (crypto.Signer, error)
}

// Recorder records one event per decision.
type Recorder = exchange.Recorder

// Secrets returns the values of the secrets that header rules name.
type Secrets = exchange.Secrets

// URLs are the gateway's public URLs, which boxes may open by name. Safe for concurrent use.
type URLs interface {
	// Served reports whether a name is currently that of a public URL, served over TLS on the port.
	Served(name.Name, uint16) bool
	// Visit serves a connection to the public URL with the name, and to no other, and returns when it has ended. The
	// connection begins with a ClientHello, and its remote address is the visitor's.
	Visit(net.Conn, name.Name)
}

// Config configures a [Proxy]. Boxes, Resolver, Leaves and Audit are required; zero durations and limits mean the
// default given at the end of their comment.
type Config struct {
	Boxes    Boxes
	Resolver route.Resolver
	Leaves   Leaves
	Audit    exchange.Recorder
	Secrets  exchange.Secrets // values of secrets in header rules; nil: rules with a secret refuse their requests
	SSHKeys  SSHKeys          // nil: no logins to SSH servers
	Tokens   exchange.Tokens  // for the upstream proxies of header rules; nil: these rules refuse their requests
	Log      *zap.Logger      // nil: no logging
	Roots    *x509.CertPool   // trusted for upstreams; nil: the system's
	Sink     []netip.Addr     // addresses that DNS returns for denied names: never dialled
	Own      []netip.Addr     // addresses of the gateway itself: never dialled, whatever the policy
	URLs     URLs             // nil: boxes cannot open the public URLs
	Host     []name.Name      // domains of the gateway's host, including its public URLs: TLS for them is never terminated
	Memory   *memory.Budget   // shared by all boxes; nil: 256 MiB
	Inside   exchange.Inside  // endpoint of the gateway for boxes; nil: none
	Meter    llm.Meter        // of requests to models; nil: header rules that meter refuse them
	Services Services         // services of the operator; nil: there are none
	DenyPage bool             // a denied TLS connection to a public name gets a 403 page under a leaf instead of an alert

	// OriginalDst returns the original destination of a transparently accepted connection. nil: its local address, for
	// TPROXY.
	OriginalDst func(net.Conn) netip.AddrPort

	MaxConns         int           // connections a box may have open, counted from accept; 2048
	MaxNewConns      int           // connections a box may make a second, sustained, in bursts of twice as many; 1000
	MaxInterceptions int           // connections of a box whose TLS is terminated at the same time; 1024
	MaxStreams       int           // requests of a box over HTTP/2 in progress at the same time, on all connections; 1024
	MaxRequests      int           // HTTP requests of a box a second, sustained, in bursts of twice as many; 50000
	MaxUpstreams     int           // connections to servers in use or idle for HTTP requests of a box, not counting tunnels; 512
	MaxAllConns      int           // connections of all boxes together; the last quarter is reserved for boxes with few; 0: no limit
	MaxAllUpstreams  int           // connections to servers of all boxes together, likewise; 0: no limit
	MaxExtraAttempts int           // parallel connection attempts of all boxes in addition to the first of each connection: one descriptor each; 1024
	MaxPipes         int           // splice pipes of all tunnels; two descriptors each; 512
	PeekTimeout      time.Duration // until the first message must be complete where the client speaks first; 10 s
	SilenceTimeout   time.Duration // silence of the client after which the server is assumed to speak first; 300 ms
	HandshakeTimeout time.Duration // for each TLS handshake, with the box (or PeekTimeout, if that is longer) and with the upstream; 15 s
	DialTimeout      time.Duration // for resolving and dialling an upstream, over all its addresses; 15 s
	AddressTimeout   time.Duration // for one address if there are several; 3 s
	IdleTimeout      time.Duration // until a spliced or upgraded connection without traffic is closed; 24 h
	LostAfter        time.Duration // how long a server may leave sent data unacknowledged on a spliced, upgraded or logged-in connection; 20 s
}

func (c *Config) setDefaults() {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.OriginalDst == nil {
		c.OriginalDst = localAddr
	}
	if c.Memory == nil {
		c.Memory = memory.New(256<<20, 256<<20)
	}
	for n, def := range map[*int]int{
		&c.MaxConns: 2048, &c.MaxNewConns: 1000, &c.MaxInterceptions: 1024, &c.MaxStreams: 1024, &c.MaxRequests: 50000,
		&c.MaxUpstreams: 512, &c.MaxPipes: 512, &c.MaxExtraAttempts: 1024,
	} {
		if *n <= 0 {
			*n = def
		}
	}
	for d, def := range map[*time.Duration]time.Duration{
		&c.PeekTimeout:      10 * time.Second,
		&c.SilenceTimeout:   300 * time.Millisecond,
		&c.HandshakeTimeout: 15 * time.Second,
		&c.DialTimeout:      15 * time.Second,
		&c.AddressTimeout:   3 * time.Second,
		&c.IdleTimeout:      24 * time.Hour,
		&c.LostAfter:        socket.LostAfter,
	} {
		if *d <= 0 {
			*d = def
		}
	}
}

// Services connects to the services that the operator opens to boxes by name. Names are judged like all others; the [Resolver] returns
// their addresses.
type Services = origin.Services

// Proxy is the egress proxy. Only [New] makes one. Safe for concurrent use.
type Proxy struct {
	cfg     Config
	live    live.Table
	usages  *usage.Table
	tls     tlsConfigs
	workers workerPool
	keys    postgres.Keys

	front *goproxy.ProxyHttpServer // parses CONNECT for the explicit proxy
	core  exchange.Core            // shared by the exchanges of all connections

	upstreamSecrets sync.Map // names of the secrets used to authenticate to upstream proxies

	base   context.Context // parent of every connection's context; cancelled when Shutdown stops draining
	cancel context.CancelFunc

	mu        sync.Mutex
	closing   bool
	listeners map[net.Listener]*atomic.Int64 // with the number of their open connections
	retired   bool                           // guarded by mu
	accepting sync.WaitGroup                 // the accepting listeners; Add under mu and only while neither closing nor retired
	handlers  socket.Handlers                // owners of all connections
}

// New returns a proxy that is not serving yet. It returns an error if a required field of cfg is missing.
func New(cfg Config) (*Proxy, error) {
	if cfg.Boxes == nil || cfg.Resolver == nil || cfg.Leaves == nil || cfg.Audit == nil {
		return nil, errors.New("proxy: Boxes, Resolver, Leaves and Audit are required")
	}
	cfg.setDefaults()
	p := &Proxy{cfg: cfg, front: newFront(), listeners: map[net.Listener]*atomic.Int64{}}
	p.base, p.cancel = context.WithCancel(context.Background())
	p.workers = workerPool{jobs: make(chan func()), stop: p.base.Done()}
	router := route.New(p.base, p.cfg.Resolver, p.cfg.Own, p.cfg.Sink, p.cfg.DialTimeout)
	p.usages = usage.New(usage.Config{
		Record: p.cfg.Audit.Record, Memory: p.cfg.Memory, Arrivals: p.cfg.MaxNewConns, Requests: p.cfg.MaxRequests,
	})
	p.core = exchange.Core{
		Router: router, Tunnels: tunnel.NewPool(p.cfg.IdleTimeout, p.cfg.MaxPipes, p.cfg.Log), Audit: p.cfg.Audit,
		Secrets: p.cfg.Secrets, Tokens: p.cfg.Tokens, Log: p.cfg.Log, MaxStreams: p.cfg.MaxStreams, Inside: p.cfg.Inside, Meter: p.cfg.Meter,
		Origins: origin.New(origin.Config{
			Router: router, Resolver: p.cfg.Resolver, Roots: p.cfg.Roots, DialTimeout: p.cfg.DialTimeout,
			AddressTimeout: p.cfg.AddressTimeout, HandshakeTimeout: p.cfg.HandshakeTimeout,
			Credential: func(ctx context.Context, secret string, host name.Name, port uint16) (name.Secret, func() bool, error) {
				p.upstreamSecrets.Store(secret, true)
				v, used, err := p.core.Credential(ctx, secret, host, port)
				return v, used.Revoked, err
			},
			Panicked:  func(box policy.BoxID, v any) { recovery.Log(p.cfg.Log, "panic in connecting to a server", box, v) },
			Services:  p.cfg.Services,
			MaxPerBox: p.cfg.MaxUpstreams, MaxAll: p.cfg.MaxAllUpstreams, MaxExtra: p.cfg.MaxExtraAttempts,
		}),
	}
	p.core.Tunnels.LostAfter = p.cfg.LostAfter
	p.live.Total = p.cfg.MaxAllConns
	return p, nil
}

// Parts are the shared parts of a proxy, for tests of this package and of the packages below it.
type Parts struct {
	Core   *exchange.Core
	Usages *usage.Table
	Live   *live.Table
}

// Parts returns the parts of p.
func (p *Proxy) Parts() Parts { return Parts{Core: &p.core, Usages: p.usages, Live: &p.live} }

// Recheck routes every live connection of a box under the current policy, cuts those it no longer allows, and returns when
// they are closed. Other connections are unaffected. Call it after swapping the policy.
func (p *Proxy) Recheck(box policy.BoxID) {
	p.recheckAll(p.live.Of(box))
	p.core.Origins.CloseElsewhere(box)
}

// Revoke cuts the connections with a request in progress that was sent with a value of the secret fetched before the call,
// and returns when they are closed. Other connections are not routed again.
func (p *Proxy) Revoke(secret string) {
	p.core.Revoked.Revoke(secret)
	if p.core.Revoked.Used(secret) {
		p.recheckAll(slices.DeleteFunc(p.live.All(), func(l *live.Conn) bool { return !l.Revoked() }))
		p.cutUpstreamUsers(secret)
	}
	if name.IsKeySecret(secret) { // API keys can use new names without end
		p.core.Revoked.Forget(secret)
		p.upstreamSecrets.Delete(secret)
	}
}

// cutUpstreamUsers cuts the connections of the boxes whose upstream proxy is used with a secret, and closes the idle
// connections that they would use next.
func (p *Proxy) cutUpstreamUsers(secret string) {
	if _, used := p.upstreamSecrets.Load(secret); !used {
		return
	}
	conns := slices.DeleteFunc(p.live.All(), func(l *live.Conn) bool { return !l.Box.Policy.Load().GoesWith(secret) })
	p.closeAll(conns, name.ReasonSecretUnavailable, nil)
	p.core.Origins.CloseAllIdle() // of all boxes, as only a reconnect is lost
}

// UsesSecret reports whether a secret may be in use: it was sent before, and boxes have open connections.
func (p *Proxy) UsesSecret(secret string) bool { return p.core.Revoked.Used(secret) && p.live.Any() }

// recheckAll routes connections again, and returns when the cut ones have ended.
func (p *Proxy) recheckAll(conns []*live.Conn) {
	var mu sync.Mutex
	var spliced, cut []*live.Conn
	var all sync.WaitGroup
	alone := func(l *live.Conn) { // in parallel: a connection with a stuck stream must not delay the others
		all.Go(func() {
			if p.recheck(l) {
				mu.Lock()
				defer mu.Unlock()
				cut = append(cut, l)
			}
		})
	}
	for _, l := range conns {
		if l.Spliced() {
			spliced = append(spliced, l)
		} else {
			alone(l)
		}
	}
	spliced = p.recheckSpliced(spliced, alone)
	all.Wait()
	live.Wait(append(cut, spliced...))
}

// recheckSpliced routes spliced connections again, and returns the ones that it cut. Each processor cuts the clients of its share before
// it resets a server: nothing passes from then on, and half of the work remains. Connections that need a lookup, which may take its whole
// time, are passed to alone: they must not delay the others.
func (p *Proxy) recheckSpliced(conns []*live.Conn, alone func(*live.Conn)) (cut []*live.Conn) {
	finish := make([]func(), len(conns))
	inParallel(len(conns), func(i int) {
		var waits bool
		if finish[i], waits = p.rerouteNow(conns[i]); waits {
			alone(conns[i])
		}
	})
	inParallel(len(conns), func(i int) {
		if finish[i] != nil {
			finish[i]()
		}
	})
	for i, l := range conns {
		if finish[i] != nil {
			cut = append(cut, l)
		}
	}
	return cut
}

// inParallel calls do with 0 to n-1 on all processors.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	all.Wait()
}

// recheck routes one connection again, and reports whether that cut it.
func (p *Proxy) recheck(l *live.Conn) (cut bool) {
	finish := p.reroute(l, p.core.Router.Reroute)
	if finish != nil {
		finish()
	}
	return finish != nil
}

// rerouteNow is reroute for a connection that can be routed without a lookup. Otherwise it leaves the connection as it is, and reports
// that routing it may wait.
func (p *Proxy) rerouteNow(l *live.Conn) (finish func(), waits bool) {
	finish = p.reroute(l, func(c *policy.Compiled, _ *policy.Box, was route.Routed) policy.Route {
		rt, now := p.core.Router.RerouteNow(c, was)
		if waits = !now; waits {
			return was.Route
		}
		return rt
	})
	return finish, waits && finish == nil
}

// reroute routes one connection again. If that cuts it, it returns the function that finishes and records the cut, else nil. A panic
// cuts the connection as well.
func (p *Proxy) reroute(l *live.Conn, by func(*policy.Compiled, *policy.Box, route.Routed) policy.Route) (finish func()) {
	defer recovery.Panic(p.cfg.Log, l.Box.ID, func() {
		finish = func() {}
		l.Close(&policy.DeniedError{Request: policy.Request{Box: l.Box.ID}, Decision: policy.Decision{Reason: name.ReasonInternal}}, recovery.ErrFault)
	})
	rest := l.Recheck(by)
	if rest == nil {
		return nil
	}
	return func() {
		defer recovery.Panic(p.cfg.Log, l.Box.ID, func() {}) // the connection is cut
		rest()
		p.recordCut(l)
	}
}

// recordCut records that the policy has cut a connection.
func (p *Proxy) recordCut(l *live.Conn) {
	why := l.Denied()
	p.cfg.Audit.Record(audit.Event{
		Time: time.Now(), Box: l.Box.ID, Stage: policy.StageConn, Protocol: policy.TCP,
		Name: why.Request.Name.String(), Addr: why.Request.Addr, Port: why.Request.Port,
		Verdict: policy.Deny, Action: audit.ActionRefuse, Reason: exchange.CutReason(why.Decision),
		Rule: why.Decision.Rule, Version: why.Decision.Version,
		BytesIn: l.In.Load(), BytesOut: l.Out.Load(), Error: why.Error(),
	})
}

// Passing returns the client addresses of a box's connections on which the policy currently lets bytes pass.
func (p *Proxy) Passing(box policy.BoxID) map[netip.AddrPort]bool {
	ends := map[netip.AddrPort]bool{}
	for _, l := range p.live.Of(box) {
		if l.Passes() {
			ends[addrPort(l.Client())] = true
		}
	}
	return ends
}

// Capture begins to record the requests of a box that arrive from now on. ok is false if they are recorded already. The caller calls
// release when it takes no more entries.
func (p *Proxy) Capture(box *policy.Box, o har.Options) (c *har.Capture, release func(), ok bool) {
	used := p.usages.Of(box)
	c = har.New(o, used.Told.Texts())
	if !used.Capture.CompareAndSwap(nil, c) {
		return nil, nil, false
	}
	return c, func() {
		used.Capture.CompareAndSwap(c, nil)
		c.End("")
		c.Discard()
	}, true
}

// CloseBox closes every connection of a box and drops its state. Call it after Boxes has stopped finding the box, so that
// no new connection can begin.
func (p *Proxy) CloseBox(box policy.BoxID) {
	p.closeAll(p.live.Of(box), name.ReasonUnknownBox, live.ErrBoxRemoved)
	p.usages.Forget(box)
	p.core.Router.Forget(box)
	p.forgetTLS(box)
	p.core.Origins.CloseBox(box)
}

// closeAll cuts the connections and waits for their handlers to return.
func (p *Proxy) closeAll(conns []*live.Conn, why name.Reason, stop error) {
	for _, l := range conns {
		l.Close(&policy.DeniedError{Request: policy.Request{Box: l.Box.ID}, Decision: policy.Decision{Reason: why}}, stop)
	}
	live.Wait(conns)
}

// Retire stops accepting and returns when all listeners have stopped. Connections that were already accepted are served.
// The listening sockets stay usable for another process that shares them.
func (p *Proxy) Retire() {
	p.mu.Lock()
	p.retired = true
	for ln := range p.listeners {
		_ = ln.Close()
	}
	p.mu.Unlock()
	p.accepting.Wait()
}

// Open returns the number of open connections of boxes.
func (p *Proxy) Open() int { return p.live.Open() }

// CloseAll cuts every connection of every box.
func (p *Proxy) CloseAll() { p.closeAll(p.live.All(), name.ReasonInternal, live.ErrShutdown) }

// Shutdown stops accepting and waits for open connections, including tunnels, to finish. If ctx ends first, it closes
// them and returns the error of ctx.
func (p *Proxy) Shutdown(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	for ln := range p.listeners {
		_ = ln.Close()
	}
	p.mu.Unlock()
	p.handlers.Close()
	defer p.usages.Flush()
	defer p.core.Origins.Close()
	defer p.core.Tunnels.Close()
	defer p.cancel()
	drained := make(chan struct{})
	go func() {
		p.handlers.Wait()
		close(drained)
	}()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		p.closeAll(p.live.All(), name.ReasonInternal, live.ErrShutdown) // before cancelling the context, so that the events have this reason
		p.cancel()
		p.closeAll(p.live.All(), name.ReasonInternal, live.ErrShutdown) // connections accepted during the first closeAll
		return ctx.Err()
	}
}

// maxIdleWorkers is the maximum number of idle goroutines of a crew.
const maxIdleWorkers = 64

// workerPool runs connection handlers until they return or hand over their connection. First bytes and handshakes grow a stack to
// several times its initial size, so finished goroutines are reused for the next connections.
type workerPool struct {
	jobs        chan func()     // unbuffered: only idle goroutines receive
	stop        <-chan struct{} // closed when no more jobs come
	idleWorkers atomic.Int64
}

// run runs a job in an idle or new goroutine, and returns immediately.
func (c *workerPool) run(job func()) {
	select {
	case c.jobs <- job:
	default:
		go c.work(job)
	}
}

func (c *workerPool) work(job func()) {
	for job != nil {
		job()
		job = c.next()
	}
}

// next returns the next job, or nil if the goroutine should exit.
func (c *workerPool) next() (job func()) {
	defer c.idleWorkers.Add(-1)
	if c.idleWorkers.Add(1) > maxIdleWorkers {
		return nil
	}
	select {
	case job = <-c.jobs:
	case <-c.stop:
	}
	return job
}

// Filled returns how much of each of its limits a box uses, from 0 to 1, by the limit's name in the configuration.
func (p *Proxy) Filled(box policy.BoxID) map[string]float64 {
	filled := map[string]float64{"connections": 0, "interceptions": 0, "streams": 0}
	if u := p.usages.Find(box); u != nil {
		filled["connections"] = fraction(int64(p.live.Count(box)), u.Limit(policy.LimitConnections, p.cfg.MaxConns))
		filled["interceptions"] = fraction(u.Interceptions.Load(), u.Limit(policy.LimitInterceptions, p.cfg.MaxInterceptions))
		filled["streams"] = fraction(u.Streams.Load(), u.Limit(policy.LimitStreams, p.cfg.MaxStreams))
	}
	return filled
}

// fraction returns used as a fraction of limit, or 0 without a limit.
func fraction(used int64, limit int) float64 {
	if limit <= 0 {
		return 0
	}
	return float64(used) / float64(limit)
}

// Use is the use of one bounded resource. A limit of 0 means unlimited.
type Use struct{ Taken, Most int }

// Uses returns the use of the resources that all boxes share, by name: their connections, connections to servers for HTTP
// requests, parallel connection attempts, and pipes of tunnels.
func (p *Proxy) Uses() map[string]Use {
	return map[string]Use{
		"box_connections":    {p.live.Open(), p.cfg.MaxAllConns},
		"server_connections": {p.core.Origins.Open(), p.cfg.MaxAllUpstreams},
		"extra_attempts":     {p.core.Origins.Extra(), p.cfg.MaxExtraAttempts},
		"tunnel_pipes":       {p.core.Tunnels.Pipes(), p.cfg.MaxPipes},
	}
}
