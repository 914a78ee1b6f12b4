package acme

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"boxgate/certs/acme/pebbletest"
	"boxgate/policy/name"
)

// patience is a timeout for operations that take seconds on an idle machine.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	certmagic.RateLimitEvents, certmagic.RateLimitEventsWindow = 1000, time.Second // for 200 names at once
	log.SetOutput(io.Discard)                                                      // certmagic logs here that our listeners are open
	if text := os.Getenv(hostVariable); text != "" {
		if err := runHost(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// field has a gateway's listeners and their environment.
type field struct {
	*testing.T
	http, https net.Listener
	names       *nameserver
	served      sync.Map // hosts that are public URLs
	challenge   atomic.Pointer[Manager]
}

// newField opens the listeners of a gateway; [field.use] sets its Manager.
func newField(t *testing.T) *field {
	t.Helper()
	f := &field{T: t, names: newNameserver(t)}
	f.http, f.https = listen(t), listen(t)
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		if host == "" {
			host = r.Host
		}
		if body, ok := f.challenge.Load().Challenge(host, r.URL.Path); ok {
			_, _ = io.WriteString(w, body)
			return
		}
		http.NotFound(w, r)
	})}
	go func() { _ = server.Serve(f.http) }()
	t.Cleanup(func() { _ = server.Close() })
	settings := &tls.Config{NextProtos: []string{"h2", "http/1.1", Protocol}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return f.challenge.Load().GetCertificate(h)
	}}
	go func() {
		for {
			conn, err := f.https.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = tls.Server(conn, settings).HandshakeContext(t.Context())
			}()
		}
	}()
	return f
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// tarpit makes the names below a domain resolve to a host that accepts connections on the validation ports without
// answering.
func (f *field) tarpit(domain string) {
	f.Helper()
	for _, ln := range []net.Listener{f.http, f.https} {
		held, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", at(ln).Port()))
		if err != nil {
			f.Fatal(err)
		}
		var conns []net.Conn
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := held.Accept()
				if err != nil {
					return
				}
				conns = append(conns, c)
			}
		}()
		f.Cleanup(func() {
			_ = held.Close()
			<-done
			for _, c := range conns {
				_ = c.Close()
			}
		})
	}
	f.names.tarpit.Store(&domain)
}

func at(ln net.Listener) netip.AddrPort { return ln.Addr().(*net.TCPAddr).AddrPort() }

// pebble starts an issuer that validates this gateway.
func (f *field) pebble(o pebbletest.Options) *pebbletest.Pebble {
	f.Helper()
	o.HTTPPort, o.TLSPort, o.DNS = at(f.http).Port(), at(f.https).Port(), f.names.address
	if o.Validity == 0 {
		o.Validity = 90 * 24 * time.Hour
	}
	return pebbletest.Start(f.T, o)
}

// config is that of a gateway with these issuers.
func (f *field) config(issuers ...Issuer) Config {
	f.Helper()
	domain, err := name.Parse("preview.example.com")
	if err != nil {
		f.Fatal(err)
	}
	storage, err := NewFiles(filepath.Join(f.TempDir(), "acme"))
	if err != nil {
		f.Fatal(err)
	}
	return Config{
		Email: "ops@example.com", Issuers: issuers, Storage: storage, Domain: domain, HTTP: at(f.http), HTTPS: at(f.https), Log: testLog(f.T),
		Wait: patience, retry: time.Millisecond, Served: func(host string) bool { _, ok := f.served.Load(host); return ok },
	}
}

// use makes a Manager the source of certificates until the test ends or another Manager is used, and runs it.
func (f *field) use(cfg Config) *Manager {
	f.Helper()
	m, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.challenge.Store(m)
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		m.Run(context.Background())
	}()
	f.Cleanup(func() {
		m.Close()
		<-ran
	})
	return m
}

// shown makes a handshake and returns the server's certificate.
func (f *field) shown(host string, protocols ...string) (*x509.Certificate, tls.ConnectionState, error) {
	tcp, err := net.Dial("tcp", f.https.Addr().String())
	if err != nil {
		return nil, tls.ConnectionState{}, err
	}
	defer tcp.Close()
	conn := tls.Client(tcp, &tls.Config{ServerName: host, InsecureSkipVerify: true, NextProtos: protocols})
	if err := conn.Handshake(); err != nil {
		return nil, tls.ConnectionState{}, err
	}
	state := conn.ConnectionState()
	return state.PeerCertificates[0], state, nil
}

// visit is shown for a host that gets a certificate eventually: pebble gives up a validation after five seconds, which
// a busy machine may exceed.
func (f *field) visit(host string) (leaf *x509.Certificate, state tls.ConnectionState) {
	f.Helper()
	f.eventually("a certificate for "+host, func() (ok bool) {
		var err error
		leaf, state, err = f.shown(host)
		return err == nil
	})
	return leaf, state
}

// mustShow is visit for a host whose certificate must be of that issuer.
func (f *field) mustShow(host string, issuer *pebbletest.Pebble) *x509.Certificate {
	f.Helper()
	leaf, state := f.visit(host)
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: issuer.Roots(f.T), Intermediates: between}); err != nil {
		f.Errorf("%s: %v", host, err)
	}
	return leaf
}

// eventually waits for a condition.
func (f *field) eventually(what string, holds func() bool) {
	f.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			f.Fatalf("it never happened: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// issuer returns the configuration of a pebble.
func issuer(t *testing.T, p *pebbletest.Pebble) Issuer {
	t.Helper()
	return Issuer{Directory: p.Directory, Roots: rootsOf(t, p.RootsFile)}
}

func rootsOf(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data)
	return pool
}

// front is a proxy in front of an issuer: it counts requests and may answer them itself.
type front struct {
	Issuer
	certificate   *x509.Certificate // of the front itself
	asked, orders atomic.Int64
	replaced      atomic.Int64 // orders that name the certificate they replace
	answer        atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

// newFront puts a proxy in front of an issuer.
func newFront(t *testing.T, p *pebbletest.Pebble) *front {
	t.Helper()
	f := &front{}
	target, err := url.Parse("https://" + p.Address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: rootsOf(t, p.RootsFile)}},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if !errors.Is(err, context.Canceled) {
				t.Log(err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if r.URL.Path == "/order-plz" {
			f.order(r)
		}
		if answer := f.answer.Load(); answer != nil && (*answer)(w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	f.Issuer = Issuer{Directory: server.URL + "/dir", Roots: x509.NewCertPool()}
	f.certificate = server.Certificate()
	f.Roots.AddCert(f.certificate)
	return f
}

// order counts a request for an order.
func (f *front) order(r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	f.orders.Add(1)
	if strings.Contains(payload(body), `"replaces"`) {
		f.replaced.Add(1)
	}
}

// answers sets a function that may answer requests itself, and reports whether it did.
func (f *front) answers(answer func(http.ResponseWriter, *http.Request) bool) {
	f.answer.Store(&answer)
}

// down makes the front answer all requests with a status.
func (f *front) down(status int) {
	f.answers(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(status); return true })
}

// nameserver answers with 127.0.0.1 for all names except those that are lost, or lead to a tarpit.
type nameserver struct {
	address string
	lost    sync.Map
	tarpit  atomic.Pointer[string] // the domain whose names lead to 127.0.0.2
}

func newNameserver(t *testing.T) *nameserver {
	t.Helper()
	ln := listen(t) // pebble asks over TCP
	n := &nameserver{address: ln.Addr().String()}
	server := &dns.Server{Listener: ln, Handler: n}
	go func() { _ = server.ActivateAndServe() }()
	return n
}

func (n *nameserver) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	name := q.Question[0].Name
	if _, lost := n.lost.Load(strings.TrimSuffix(name, ".")); lost {
		m.Rcode = dns.RcodeNameError
	} else if q.Question[0].Qtype == dns.TypeA {
		at := net.IPv4(127, 0, 0, 1)
		if tarpit := n.tarpit.Load(); tarpit != nil && strings.HasSuffix(name, "."+*tarpit+".") {
			at = net.IPv4(127, 0, 0, 2)
		}
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: at}}
	}
	_ = w.WriteMsg(m)
}

// testLog shows the Manager's log if the test fails. Log lines after the end of the test are lost.
func testLog(t *testing.T) *zap.Logger {
	var kept buffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the Manager's log:\n%s", kept.text())
		}
	})
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewDevelopmentEncoderConfig()), &kept, zap.InfoLevel))
}

// buffer keeps what is written.
type buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (*buffer) Sync() error { return nil }

func (b *buffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}
