package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/elazarl/goproxy"

	"boxgate/audit"
	"boxgate/certs"
	"boxgate/policy"
	"boxgate/proxy"
)

// upstreamName is the host whose requests are intercepted.
const upstreamName = "api.example.com"

// world is one upstream with 1 KiB responses, and one CA for both upstream and interception.
type world struct {
	upstream *httptest.Server
	ca       *certs.Authority
	roots    *x509.CertPool
}

func newWorld(b *testing.B) *world {
	ca, err := certs.NewCA("bench")
	if err != nil {
		b.Fatal(err)
	}
	cert, err := ca.ServerCertificate(upstreamName)
	if err != nil {
		b.Fatal(err)
	}
	answer := bytes.Repeat([]byte("x"), 1024)
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" && r.Header.Get("X-Direct") == "" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = w.Write(answer)
	}))
	upstream.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"http/1.1"}}
	upstream.StartTLS()
	b.Cleanup(upstream.Close)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	return &world{upstream: upstream, ca: ca, roots: roots}
}

func (w *world) upstreamAddr() netip.AddrPort {
	return w.upstream.Listener.Addr().(*net.TCPAddr).AddrPort()
}

// InterceptKeepAlive: HTTP/1.1, kept alive on both sides, one header set, the upstream verified, TLS 1.3.
func BenchmarkInterceptKeepAlive(b *testing.B) {
	w := newWorld(b)
	b.Run("direct", func(b *testing.B) { w.run(b, "") })
	b.Run("boxgate", func(b *testing.B) { w.run(b, w.boxgate(b)) })
	b.Run("goproxy", func(b *testing.B) { w.run(b, w.goproxy(b)) })
}

// run sends b.N requests from as many clients as there are processors, through the proxy at the address, or directly.
func (w *world) run(b *testing.B, proxyAddr string) {
	b.ReportAllocs()
	b.SetBytes(1024)
	b.RunParallel(func(pb *testing.PB) {
		client := w.client(proxyAddr)
		defer client.CloseIdleConnections()
		target := "https://" + upstreamName + ":" + w.port() + "/"
		for pb.Next() {
			if err := fetch(client, target, proxyAddr == ""); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func (w *world) port() string {
	_, port, _ := net.SplitHostPort(w.upstream.Listener.Addr().String())
	return port
}

func (w *world) client(proxyAddr string) *http.Client {
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots, NextProtos: []string{"http/1.1"}}}
	if proxyAddr != "" {
		t.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxyAddr})
	} else {
		t.DialContext = w.dialUpstream
	}
	return &http.Client{Transport: t}
}

func (w *world) dialUpstream(ctx context.Context, network, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, w.upstreamAddr().String())
}

func fetch(c *http.Client, target string, direct bool) error {
	req, err := http.NewRequest(http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	if direct {
		req.Header.Set("X-Direct", "1")
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || n != 1024) {
		err = &url.Error{Op: "GET", URL: target, Err: http.ErrNotSupported}
	}
	return err
}

// boxgate starts the explicit proxy with one box that has one header rule.
func (w *world) boxgate(b *testing.B) string {
	rules, err := policy.ParseHeaders(map[string]map[string]string{
		upstreamName + ":" + w.port(): {"Authorization": "Bearer secret"},
	})
	if err != nil {
		b.Fatal(err)
	}
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	compiled, err := policy.Compile(policy.Spec{Mode: policy.ModeAllowAll}, rules, policy.NewProtected(loopback, nil), 1)
	if err != nil {
		b.Fatal(err)
	}
	box := &policy.Box{ID: "bench"}
	box.Policy.Store(compiled)
	var minter certs.Minter
	if err := minter.Add(box.ID, w.ca); err != nil {
		b.Fatal(err)
	}
	p, err := proxy.New(proxy.Config{
		Boxes: one{box}, Resolver: one{box}, Leaves: &minter, Roots: w.roots, Audit: audit.New(audit.Options{}),
		MaxRequests: 1 << 20, // what is measured must not be the limit
	})
	if err != nil {
		b.Fatal(err)
	}
	ln := listen(b)
	go func() { _ = p.ServeExplicit(b.Context(), ln) }()
	return ln.Addr().String()
}

// one fakes the gateway around a single box, with all names resolving to loopback.
type one struct{ box *policy.Box }

func (o one) BoxByAddr(netip.Addr) *policy.Box { return o.box }

func (o one) Lookup(context.Context, *policy.Box, policy.Name) ([]netip.Addr, error) {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
}

func (o one) LookupBoth(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	return o.Lookup(ctx, b, n)
}

func (o one) Granted(policy.BoxID, policy.Name, netip.Addr) bool { return false }

func (o one) GrantedNames(policy.BoxID, netip.Addr) []policy.Name { return nil }

// goproxy starts the peer as its documentation recommends for interception, tuned: certificates cached, a P-256 CA, the
// upstream verified and kept alive, one header set.
func (w *world) goproxy(b *testing.B) string {
	key, err := w.ca.KeyPEM()
	if err != nil {
		b.Fatal(err)
	}
	ca, err := tls.X509KeyPair(w.ca.CertificatePEM(), []byte(key.Reveal()))
	if err != nil {
		b.Fatal(err)
	}
	leaf, err := w.ca.ServerCertificate(upstreamName)
	if err != nil {
		b.Fatal(err)
	}
	p := goproxy.NewProxyHttpServer()
	p.Tr = &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: w.roots}, DialContext: w.dialUpstream, MaxIdleConnsPerHost: 256,
	}
	p.CertStore = fixed{leaf}
	p.OnRequest().HandleConnect(goproxy.FuncHttpsHandler(func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		return &goproxy.ConnectAction{Action: goproxy.ConnectMitm, TLSConfig: goproxy.TLSConfigFromCA(&ca)}, host
	}))
	p.OnRequest().DoFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		r.Header.Set("Authorization", "Bearer secret")
		return r, nil
	})
	srv := &http.Server{Handler: p}
	ln := listen(b)
	go func() { _ = srv.Serve(ln) }()
	b.Cleanup(func() { _ = srv.Close() })
	return ln.Addr().String()
}

// fixed is a certificate store that always returns the leaf.
type fixed struct{ leaf *tls.Certificate }

func (f fixed) Fetch(string, func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	return f.leaf, nil
}

func listen(b *testing.B) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	return ln
}
