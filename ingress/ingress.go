package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/audit"
	"boxgate/policy"

	"go.uber.org/zap"
)

// URLs finds public URLs. Lookup is called twice for every request, concurrently, and must be fast.
type URLs interface {
	// Lookup finds the target of a host name, given in lower case without port and trailing dot.
	Lookup(host string) (Target, bool)
}

// Config is what [New] needs. URLs is required, and GetCertificate for [Ingress.ServeTLS].
type Config struct {
	URLs URLs
	// GetCertificate returns the certificate of a server name. It is called before anything else is known about a
	// client, so it must not issue certificates for names that are not URLs.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Dial connects to the target's address and nowhere else. nil: plain TCP.
	Dial func(ctx context.Context, t Target) (net.Conn, error)
	// Wake is called before a box is dialled, and only for requests that passed all checks. nil: boxes never sleep.
	Wake  func(ctx context.Context, box policy.BoxID) error
	Audit audit.Recorder // nil: no events
	Log   *zap.Logger    // nil: no log

	DialTimeout       time.Duration // 0: 10 s
	ReadHeaderTimeout time.Duration // 0: 10 s
	IdleTimeout       time.Duration // of a connection without request; 0: 2 min
	MaxHeaderBytes    int           // 0: 64 KiB, which is also the most over HTTP/1.x
}

// Ingress serves public URLs. Safe for concurrent use.
type Ingress struct {
	Config
	proxy     *httputil.ReverseProxy // of requests over HTTP/2
	transport *http.Transport        // of proxy
	upstreams pool                   // of requests over HTTP/1.x
	active    active
	stopping  atomic.Bool

	mu        sync.Mutex
	servers   []*http.Server
	listeners []*listener
	closed    bool
}

// New makes an Ingress; its Serve methods start it.
func New(cfg Config) (*Ingress, error) {
	if cfg.URLs == nil {
		return nil, errors.New("ingress: URLs is required")
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 10 * time.Second
	}
	if cfg.ReadHeaderTimeout == 0 {
		cfg.ReadHeaderTimeout = 10 * time.Second
	}
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = 2 * time.Minute
	}
	if cfg.MaxHeaderBytes == 0 {
		cfg.MaxHeaderBytes = 64 << 10
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, t Target) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", t.Addr.String())
		}
	}
	g := &Ingress{Config: cfg}
	g.transport = g.newTransport()
	g.proxy = g.newProxy()
	return g, nil
}

// ServeTLS serves public URLs over HTTPS, HTTP/1.1 and HTTP/2, until Shutdown. Then it returns nil.
func (g *Ingress) ServeTLS(ln net.Listener) error {
	if g.GetCertificate == nil {
		return errors.New("ingress: GetCertificate is required for HTTPS")
	}
	srv := g.server(g)
	srv.TLSConfig = &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: g.GetCertificate,
		NextProtos:     []string{"h2", "http/1.1"},
	}
	h2 := newHandOver(ln.Addr())
	served := make(chan error, 1)
	go func() { served <- g.serve(srv, func() error { return srv.Serve(h2) }) }()
	err := g.listen(&listener{ln: ln, tls: srv.TLSConfig, h2: h2})
	_ = h2.Close()
	if failed := <-served; !errors.Is(failed, net.ErrClosed) {
		err = errors.Join(err, failed)
	}
	return err
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

// ServeRedirect answers plain HTTP with redirects to the HTTPS URL at httpsPort. challenge, if not nil, sees each request
// first and reports whether it has answered it (ACME HTTP-01).
func (g *Ingress) ServeRedirect(ln net.Listener, httpsPort uint16, challenge func(http.ResponseWriter, *http.Request) bool) error {
	srv := g.server(g.redirector(httpsPort, challenge))
	return g.serve(srv, func() error { return srv.Serve(ln) })
}

func (g *Ingress) server(h http.Handler) *http.Server {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: g.ReadHeaderTimeout,
		IdleTimeout:       g.IdleTimeout,
		MaxHeaderBytes:    g.MaxHeaderBytes,
		ErrorLog:          audit.ServerLog(g.Log, nil),
		// "OPTIONS *" is refused like every request without a host and path, and recorded.
		DisableGeneralOptionsHandler: true,
	}
	g.tellUnread(srv)
	return srv
}

func (g *Ingress) serve(srv *http.Server, run func() error) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return http.ErrServerClosed
	}
	g.servers = append(g.servers, srv)
	g.mu.Unlock()
	if err := run(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listen serves a listener until Shutdown.
func (g *Ingress) listen(l *listener) error {
	l.g, l.conns = g, map[net.Conn]*atomic.Bool{}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		_ = l.ln.Close()
		return http.ErrServerClosed
	}
	g.listeners = append(g.listeners, l)
	g.mu.Unlock()
	if err := l.run(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown stops listening, lets requests finish until ctx ends, and then cuts the remaining ones, including
// WebSockets.
func (g *Ingress) Shutdown(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	servers, listeners := g.servers, g.listeners
	g.mu.Unlock()
	g.stopping.Store(true)
	var wait sync.WaitGroup
	for _, l := range listeners {
		wait.Go(l.close)
	}
	for _, srv := range servers {
		wait.Go(func() {
			if srv.Shutdown(ctx) != nil {
				_ = srv.Close()
			}
		})
	}
	wait.Wait()
	err := g.active.drain(ctx)
	for _, l := range listeners {
		l.wait(ctx)
	}
	g.closeIdle()
	return err
}

// CloseURL cuts every request and WebSocket of a URL, and returns when they are gone. Call it after Lookup has dropped
// the URL or returns its new credentials, so that later requests are judged by those. The caller must not hold a lock
// that Lookup or Wake takes, or a request that is calling them could not end.
func (g *Ingress) CloseURL(id string) {
	g.active.cut(func(t Target) bool { return t.ID == id })
	g.closeIdle()
}

// closeIdle closes the connections to boxes that no request uses.
func (g *Ingress) closeIdle() {
	g.transport.CloseIdleConnections()
	g.upstreams.close(func(*upstream) bool { return true })
}

// CloseBox is [Ingress.CloseURL] for every URL of a box.
func (g *Ingress) CloseBox(box policy.BoxID) {
	g.active.cut(func(t Target) bool { return t.Box == box })
	g.closeIdle()
}
