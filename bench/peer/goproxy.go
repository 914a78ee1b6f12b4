package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/elazarl/goproxy"

	"boxgate/bench/origin"
)

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
