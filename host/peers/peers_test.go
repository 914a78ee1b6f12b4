package peers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/fleet/pki"
	"boxgate/ingress"
	"boxgate/ingress/balancer"
	"boxgate/policy"
	"boxgate/policy/name"
)

// directory has the addresses and keys of hosts. Each pair of hosts has a secret made of their IDs.
type directory struct {
	authority *pki.Authority

	mu     sync.Mutex
	at     map[string]netip.AddrPort
	left   map[string]bool
	keys   map[string][]byte // fingerprints
	certs  map[string]*tls.Certificate
	issuer map[string]pki.Issuer
	claims map[string]string // hosts by the domains of their own
}

// enter makes a key and a certificate for a host.
func (d *directory) enter(t testing.TB, host string) {
	t.Helper()
	key, fingerprint, err := pki.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	issuer := pki.Issuer{Host: host, HostKey: key, Authority: d.authority.PEM(), AuthorityKey: func(context.Context) (name.Secret, error) { return d.authority.Key() }}
	d.mu.Lock()
	d.keys[host], d.issuer[host] = fingerprint, issuer
	d.mu.Unlock()
	d.renew(t, host)
}

// renew gives a host another certificate for its key.
func (d *directory) renew(t testing.TB, host string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	cert, err := d.issuer[host].Issue(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d.certs[host] = cert
}

// leave removes a host.
func (d *directory) leave(host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left[host] = true
}

// view is the directory of one host.
type view struct {
	*directory
	own string
}

func (v view) IngressOf(host string) (netip.AddrPort, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at, ok := v.at[host]
	return at, ok && host != v.own
}

func (v view) Secrets(host string) (to, from []byte, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok = v.at[host]
	return []byte(v.own + host), []byte(host + v.own), ok && !v.left[host]
}

func (v view) DomainOwner(domain string) (string, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	host, ok := v.claims[domain]
	return host, ok
}

func (v view) VisitorPeers() pki.Peers {
	root, err := pki.ParseCertificate(v.authority.PEM())
	if err != nil {
		panic(err)
	}
	return pki.Peers{Authority: root, Known: func(host string) ([]byte, bool) {
		v.mu.Lock()
		defer v.mu.Unlock()
		key, ok := v.keys[host]
		return key, ok && !v.left[host]
	}}
}

func (v view) Certificate() (*tls.Certificate, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.certs[v.own], nil
}

const domain = "preview.test"

// ownDomain is a domain of a public URL.
const ownDomain = "app.customer.example"

// nameOf is the host name of the public URL of a box of a host.
func nameOf(host string) string { return host + "0000000001-8000." + domain }

func parse(host string) (id policy.BoxID, port uint16, ok bool) {
	id16, _, ok := strings.Cut(host, "-8000."+domain)
	return policy.BoxID(id16), 8000, ok && len(id16) == 16
}

// host is a host with an ingress.
type host struct {
	*ingress.Ingress
	id, address string
	plain       string // address of the listener for a reverse proxy on the same machine
	peers       *Peers
	target      ingress.Target
	leaf        *x509.Certificate
	roots       *x509.CertPool // of leaf
}

func (h *host) Lookup(name string) (ingress.Target, bool) {
	return h.target, (name == nameOf(h.id) || name == ownDomain) && h.target.ID != ""
}

// newHost starts the ingress of a host. Its application, if any, has the public URL.
func newHost(t testing.TB, d *directory, id string, app http.Handler, change func(*ingress.Config)) *host {
	t.Helper()
	h := &host{id: id, roots: x509.NewCertPool()}
	if app != nil {
		server := httptest.NewServer(app)
		t.Cleanup(server.Close)
		h.target = ingress.Target{ID: id, Box: policy.BoxID(id + "0000000001"), Addr: netip.MustParseAddrPort(server.Listener.Addr().String()), Auth: ingress.Auth{Open: true}}
	}
	var err error
	if h.peers, err = New(Config{Hosts: view{d, id}, Own: id, Parse: parse, Common: func(host string) bool { return strings.HasSuffix(host, "."+domain) }, Pipes: 8, Log: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	d.enter(t, id)
	cert := certificate(t, h.roots)
	h.leaf = cert.Leaf
	c := ingress.Config{URLs: h, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }, Fleet: h.peers}
	if change != nil {
		change(&c)
	}
	if h.Ingress, err = ingress.New(c); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = ln.Addr().String()
	d.mu.Lock()
	d.at[id] = netip.MustParseAddrPort(h.address)
	d.mu.Unlock()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.plain = plain.Addr().String()
	served := make(chan error, 2)
	go func() { served <- h.ServeTLS(ln) }()
	go func() { served <- h.ServePlain(plain) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = h.Shutdown(ctx)
		for range cap(served) {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
		h.peers.Close()
	})
	return h
}

func certificate(t testing.TB, roots *x509.CertPool) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"*." + domain, ownDomain}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(leaf)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func newDirectory(t testing.TB) *directory {
	t.Helper()
	authority, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	return &directory{authority: authority, at: map[string]netip.AddrPort{}, left: map[string]bool{}, keys: map[string][]byte{}, certs: map[string]*tls.Certificate{}, issuer: map[string]pki.Issuer{}, claims: map[string]string{}}
}

// address is the application: it answers with the visitor's address.
var address = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprint(w, r.Header.Get("X-Forwarded-For"))
})

// visitor returns a client that connects from an address to a host, whatever the URL.
func visitor(t testing.TB, from string, to *host, roots *x509.CertPool, h2 bool) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, to.address)
		},
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: h2,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

func get(c *http.Client, name string) (string, error) {
	response, err := c.Get("https://" + name + "/")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(text), err
}

// TestVisitorsOfAnotherHost: the application sees the address of a visitor whom another host passes on, over both versions of HTTP.
func TestVisitorsOfAnotherHost(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	a, b := newHost(t, d, "aaaaaa", address, nil), newHost(t, d, "bbbbbb", address, nil)
	for _, h2 := range []bool{false, true} {
		if got, err := get(visitor(t, "127.0.0.9", a, b.roots, h2), nameOf("bbbbbb")); got != "127.0.0.9" || err != nil {
			t.Errorf("HTTP/2 %v, by the other host: %q, %v", h2, got, err)
		}
		if got, err := get(visitor(t, "127.0.0.8", a, a.roots, h2), nameOf("aaaaaa")); got != "127.0.0.8" || err != nil {
			t.Errorf("HTTP/2 %v, of its own: %q, %v", h2, got, err)
		}
	}
	d.leave("aaaaaa")
	if got, err := get(visitor(t, "127.0.0.9", a, b.roots, false), nameOf("bbbbbb")); err == nil {
		t.Errorf("by a host that left: %q", got)
	}
}

// begin opens a connection to a host that begins with a header of host aaaaaa, and returns the error of the handshake.
func begin(t *testing.T, to *host, header []byte, serverName string) error {
	t.Helper()
	c, err := net.Dial("tcp", to.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write(header); err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(c, &tls.Config{RootCAs: to.roots, ServerName: serverName})
	if err := secure.Handshake(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(secure, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", serverName); err != nil {
		return err
	}
	text, err := io.ReadAll(secure)
	if err == nil && !strings.HasPrefix(string(text), "HTTP/1.1 200 ") {
		err = fmt.Errorf("%q", text)
	}
	return err
}

// TestHeadersThatAreRefused: a header opens one connection, to the host and the name that it is for.
func TestHeadersThatAreRefused(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	newHost(t, d, "aaaaaa", nil, nil)
	b := newHost(t, d, "bbbbbb", address, nil)
	c := newHost(t, d, "cccccc", address, nil)
	header := func(name, receiver string, age time.Duration) []byte {
		return balancer.Passed{
			From: netip.MustParseAddrPort("192.0.2.1:1"), To: netip.MustParseAddrPort("192.0.2.2:443"), Name: name, Mode: balancer.ModeTLS, Sender: "aaaaaa", Receiver: receiver,
			At: time.Now().Add(-age), Nonce: balancer.NewNonce(),
		}.Append(nil, []byte("aaaaaa"+receiver))
	}
	used := header(nameOf("bbbbbb"), "bbbbbb", 0)
	if err := begin(t, b, used, nameOf("bbbbbb")); err != nil {
		t.Fatalf("a header of a member: %v", err)
	}
	b.roots.AddCert(c.leaf) // whichever answers
	for what, err := range map[string]error{
		"a header that was used":       begin(t, b, used, nameOf("bbbbbb")),
		"an old header":                begin(t, b, header(nameOf("bbbbbb"), "bbbbbb", time.Hour), nameOf("bbbbbb")),
		"a header for another host":    begin(t, b, header(nameOf("bbbbbb"), "cccccc", 0), nameOf("bbbbbb")),
		"a header for another name":    begin(t, b, header("other."+domain, "bbbbbb", 0), nameOf("bbbbbb")),
		"a box of a third host (loop)": begin(t, b, header(nameOf("cccccc"), "bbbbbb", 0), nameOf("cccccc")),
		"a second header":              begin(t, b, append(header(nameOf("bbbbbb"), "bbbbbb", 0), header(nameOf("bbbbbb"), "bbbbbb", 0)...), nameOf("bbbbbb")),
	} {
		if err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

// TestConnectionsPassedOnAreBounded: a visitor's address, and a host, get part of the places of connections that are passed on, and the
// operator's own URLs keep theirs.
func TestConnectionsPassedOnAreBounded(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	a, b := newHost(t, d, "aaaaaa", address, func(c *ingress.Config) { c.Requests = 32 }), newHost(t, d, "bbbbbb", address, nil)
	open := func(from string) error {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
		c, err := tls.DialWithDialer(dialer, "tcp", a.address, &tls.Config{RootCAs: b.roots, ServerName: nameOf("bbbbbb")})
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
		return err
	}
	opened := 0
	for i := range 64 {
		if open(fmt.Sprintf("127.0.%d.1", i+1)) == nil {
			opened++
		}
	}
	if opened == 0 || opened > 8 { // half of half
		t.Errorf("%d connections to one host; there are 16 places", opened)
	}
	if got, err := get(visitor(t, "127.1.0.1", a, a.roots, false), nameOf("aaaaaa")); got != "127.1.0.1" || err != nil {
		t.Errorf("a URL of the host itself: %q, %v", got, err)
	}
}

// TestHostThatIsAway: a visitor of a box whose host does not answer gets a TLS alert.
func TestHostThatIsAway(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	a := newHost(t, d, "aaaaaa", address, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.at["bbbbbb"] = netip.MustParseAddrPort(ln.Addr().String())
	_ = ln.Close()
	if _, err := get(visitor(t, "127.0.0.9", a, a.roots, false), nameOf("bbbbbb")); err == nil || !strings.Contains(err.Error(), "tls: internal error") {
		t.Error(err)
	}
	if a.peers.failed.Load() != 1 || a.peers.passed.Load() != 0 {
		t.Errorf("%d failed, %d passed", a.peers.failed.Load(), a.peers.passed.Load())
	}
}

// BenchmarkRequest measures requests on open connections: directly to the host with the box, and by another host.
func BenchmarkRequest(b *testing.B) {
	d := newDirectory(b)
	often := func(c *ingress.Config) { c.RequestRate = 1 << 30 } // otherwise the visitor exceeds the rate
	one, two := newHost(b, d, "aaaaaa", address, often), newHost(b, d, "bbbbbb", address, often)
	for _, to := range []*host{two, one} {
		b.Run(map[string]string{"aaaaaa": "passed", "bbbbbb": "direct"}[to.id], func(b *testing.B) {
			c := visitor(b, "127.0.0.9", to, two.roots, false)
			for b.Loop() {
				if _, err := get(c, nameOf("bbbbbb")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
