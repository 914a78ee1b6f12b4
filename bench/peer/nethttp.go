package peer

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

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
