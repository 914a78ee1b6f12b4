package ingress

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
)

const domain = ".preview.test"

// fixture is an ingress with listeners, URLs and recorded events.
type fixture struct {
	*Ingress
	https, plain string
	roots        *x509.CertPool
	der          []byte // the certificate, its own CA
	woken        atomic.Int64

	lns []net.Listener // the listeners; the first is https

	mu     sync.Mutex
	urls   map[string]Target
	events []audit.Event
	more   chan struct{} // closed and replaced at each event
	looked int           // number of lookups
}

func (f *fixture) Lookup(host string) (Target, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked++
	t, ok := f.urls[host]
	return t, ok
}

func (f *fixture) Record(e audit.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
	close(f.more)
	f.more = make(chan struct{})
}

// event waits for an event that matches.
func (f *fixture) event(t *testing.T, match func(audit.Event) bool) audit.Event {
	t.Helper()
	for {
		f.mu.Lock()
		for _, e := range f.events {
			if match(e) {
				f.mu.Unlock()
				return e
			}
		}
		more := f.more
		f.mu.Unlock()
		select {
		case <-more:
		case <-time.After(time.Minute):
			t.Fatalf("no such event among %+v", f.events)
		}
	}
}

func reason(want name.Reason) func(audit.Event) bool {
	return func(e audit.Event) bool { return e.Reason == want }
}

func (f *fixture) set(host string, t Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls[host] = t
}

func (f *fixture) remove(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.urls, host)
}

// expose makes a public URL for a server.
func (f *fixture) expose(host string, server *httptest.Server, auth Auth) Target {
	t := Target{ID: host, Box: "box1", Addr: netip.MustParseAddrPort(server.Listener.Addr().String()), Auth: auth}
	f.set(host+domain, t)
	return t
}

// exposeOf is expose for another box.
func (f *fixture) exposeOf(host string, box policy.BoxID, server *httptest.Server) {
	t := f.expose(host, server, Auth{Open: true})
	t.Box = box
	f.set(host+domain, t)
}

func start(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	return startWith(t, change, func(*Ingress) {})
}

// startWith is start with changed settings, such as timeouts.
func startWith(t testing.TB, change func(*Config), times func(*Ingress)) *fixture {
	t.Helper()
	f := &fixture{urls: map[string]Target{}, more: make(chan struct{}), roots: x509.NewCertPool()}
	cert := wildcard(t, f.roots)
	f.der = cert.Certificate[0]
	cfg := Config{
		URLs: f, Audit: f,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
	}
	boxes := &sleepers{}
	boxes.wake = func(context.Context, policy.BoxID, uint16) error {
		f.woken.Add(1)
		boxes.up.Store(true)
		return nil
	}
	cfg.Boxes = boxes
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	times(g)
	f.Ingress = g
	f.https = f.listen(t, g.ServeTLS)
	f.plain = f.listen(t, g.ServePlain)
	return f
}

func (f *fixture) listen(t testing.TB, serve func(net.Listener) error) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	direct := socket.Listener{Listener: ln}
	f.lns = append(f.lns, direct)
	go func() { served <- serve(direct) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = f.Shutdown(ctx) // may be called before the listener serves
		if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return ln.Addr().String()
}

func wildcard(t testing.TB, roots *x509.CertPool) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"*" + domain},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(leaf)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// bundle writes the CA to a file.
func (f *fixture) bundle(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.der})
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func listenAny() (net.Listener, error) { return net.Listen("tcp", "0.0.0.0:0") }

// client connects to the ingress by HTTPS, whatever the host; over HTTP/2 if h2 is set.
func (f *fixture) client(t *testing.T, h2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: f.roots},
		ForceAttemptHTTP2: h2,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", f.https)
		},
		DisableCompression: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// get fetches a URL and returns status and body; edit may change the request.
func get(t *testing.T, c *http.Client, url string, edit func(*http.Request)) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(req)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// raw sends bytes to the plain listener and returns the response.
func (f *fixture) raw(t *testing.T, text string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", f.plain)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// recorder is a server in a box that records its requests.
type recorder struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

func record(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.requests = append(r.requests, req)
		r.mu.Unlock()
		_, _ = io.WriteString(w, "hello "+string(body))
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) last(t *testing.T) *http.Request {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.requests) == 0 {
		t.Fatal("nothing arrived in the box")
	}
	return r.requests[len(r.requests)-1]
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.requests)
}

func digest(d Digest) *Digest { return &d }

// dump returns the headers of a request as text.
func dump(r *http.Request) string {
	var b strings.Builder
	_ = r.Header.Write(&b)
	return b.String()
}
