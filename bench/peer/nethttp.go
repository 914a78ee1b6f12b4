package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/elazarl/goproxy"

	"boxgate/bench/origin"
)

// NetHTTP serves a gateway made of httputil.ReverseProxy with the standard library's server, transport and pools. Each
// endpoint is a role, a listen address and the server behind it, joined by equals signs.
func NetHTTP(certificate, key, roots string, endpoints []string) error {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	pool, err := readRoots(roots)
	if err != nil {
		return err
	}
	failed := make(chan error, len(endpoints))
	for _, e := range endpoints {
		part := strings.Split(e, "=")
		if len(part) != 3 {
			return fmt.Errorf("not an endpoint: %q", e)
		}
		server := reverse(Role(part[0]), part[2], pair, pool)
		server.Addr = part[1]
		go func() { failed <- server.ListenAndServeTLS("", "") }()
	}
	return <-failed
}

// reverse returns the server of one role.
func reverse(role Role, to string, pair tls.Certificate, pool *x509.CertPool) *http.Server {
	name := map[Role]string{GRPC: "grpc", Upload: "sink"}[role]
	if name == "" {
		name = "up"
	}
	two := role == InterceptH2 || role == GRPC
	protocol := "http/1.1"
	if two {
		protocol = "h2"
	}
	p := &httputil.ReverseProxy{
		BufferPool: &buffers{sync.Pool{New: func() any { return new([32 << 10]byte) }}},
		ErrorLog:   log.Default(),
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: pool, ServerName: name + "." + origin.Suffix},
			MaxIdleConnsPerHost: 1024, DisableCompression: true, ForceAttemptHTTP2: two,
		},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "https", to
			r.Out.Host = r.In.Host
			r.Out.Header.Set(origin.Header, origin.Value)
		},
	}
	return &http.Server{
		Handler: p, ReadHeaderTimeout: time.Hour,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13},
	}
}

// buffers is a pool of buffers for copying bodies.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte { return b.pool.Get().(*[32 << 10]byte)[:] }

func (b *buffers) Put(p []byte) { b.pool.Put((*[32 << 10]byte)(p)) }

// Goproxy serves goproxy with the features for interception in its documentation: certificates are cached, the upstream
// is verified and kept alive, one header is set. Every name leads to the web server.
func Goproxy(address, ca, caKey, roots string) error {
	pair, err := tls.LoadX509KeyPair(ca, caKey)
	if err != nil {
		return err
	}
	pool, err := readRoots(roots)
	if err != nil {
		return err
	}
	p := goproxy.NewProxyHttpServer()
	p.Tr = &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, MaxIdleConnsPerHost: 1024, DisableCompression: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, origin.Web+":443")
		},
	}
	p.CertStore = &certStore{}
	intercept := &goproxy.ConnectAction{Action: goproxy.ConnectMitm, TLSConfig: goproxy.TLSConfigFromCA(&pair)}
	p.OnRequest().HandleConnectFunc(func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) { return intercept, host })
	p.OnRequest().DoFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		r.Header.Set(origin.Header, origin.Value)
		return r, nil
	})
	server := &http.Server{Addr: address, Handler: p, ReadHeaderTimeout: time.Hour}
	return server.ListenAndServe()
}

func readRoots(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: %w", path, errors.New("no certificate"))
	}
	return pool, nil
}

// certStore caches the certificates issued by goproxy.
type certStore struct{ certs sync.Map }

func (s *certStore) Fetch(host string, issue func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	if c, ok := s.certs.Load(host); ok {
		return c.(*tls.Certificate), nil
	}
	c, err := issue()
	if err == nil {
		s.certs.Store(host, c)
	}
	return c, err
}
