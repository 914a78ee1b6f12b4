package proxytest

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"boxgate/policy"
	"boxgate/proxy"
)

// AllowAll is the policy that allows everything but the protected ranges.
var AllowAll = policy.Spec{Mode: policy.ModeAllowAll}

// SecretFor sets one header on a host of a test server.
func SecretFor(name string, port uint16) map[string]map[string]string {
	return map[string]map[string]string{name + ":" + strconv.Itoa(int(port)): {"Authorization": "Bearer s3cret"}}
}

// Intercepted returns header rules under which TLS to api.example.com and its siblings is terminated on a port, for tests
// that are not about rules.
func Intercepted(port uint16) map[string]map[string]string {
	return map[string]map[string]string{"*.example.com:" + strconv.Itoa(int(port)): {"X-Rule": "in force"}}
}

// Patient prevents a slow test from being mistaken for a client whose server speaks first.
func Patient(c *proxy.Config) { c.SilenceTimeout = 10 * time.Second }

// DialPair connects as the box to the port at Orig. If secure, it makes a TLS handshake as name, which must be intercepted.
// Names without an answer resolve to loopback, where the web servers are.
func (r *Rig) DialPair(name string, port uint16, secure bool, alpn ...string) net.Conn {
	r.T.Helper()
	if secure && !r.Box.Policy.Load().Intercepts(MustName(r.T, name), port) {
		r.T.Fatalf("TLS to %s port %d is not intercepted under the policy", name, port)
	}
	r.Names.SetOthers(Loopback)
	client := r.dialAs(r.Box, netip.AddrPortFrom(r.Orig, port))
	if !secure {
		return client
	}
	if len(alpn) == 0 {
		alpn = []string{"http/1.1"}
	}
	conn := tls.Client(client, &tls.Config{ServerName: name, RootCAs: r.BoxCA.Pool(), NextProtos: alpn})
	if err := conn.Handshake(); err != nil {
		r.T.Fatal(err)
	}
	return conn
}

// dialAs connects as a box to dst. At the end of the test it checks that the proxy closes the connection after the client
// has.
func (r *Rig) dialAs(box *policy.Box, dst netip.AddrPort) net.Conn {
	r.T.Helper()
	from := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(box.V4, 0))}
	client, err := from.Dial("tcp", r.Front(dst))
	if err != nil {
		r.T.Fatal(err)
	}
	r.mu.Lock()
	r.clients[box.ID]++
	r.mu.Unlock()
	r.T.Cleanup(func() {
		_ = client.Close()
		r.mu.Lock()
		r.clients[box.ID]--
		left := r.clients[box.ID]
		r.mu.Unlock()
		Await(r.T, "the end of a connection whose client is gone", func() bool { return len(r.Live.Of(box.ID)) <= left })
	})
	_ = client.SetDeadline(time.Now().Add(r.patience()))
	return client
}

// patience returns how long a connection or a request of a client may last.
func (r *Rig) patience() time.Duration { return cmp.Or(r.Patience, time.Minute) }

// Front is Listen with one listener for each destination.
func (r *Rig) Front(dst netip.AddrPort) string {
	r.T.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fronts[dst] == "" {
		r.fronts[dst] = r.listenLocked(dst)
	}
	return r.fronts[dst]
}

// HTTPClient returns a client of api.example.com. Over HTTP/1.1 it may make several connections; over HTTP/2 it uses one
// for all requests.
func (r *Rig) HTTPClient(port uint16, h2 bool) *http.Client {
	r.T.Helper()
	c := &http.Client{Timeout: r.patience(), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if h2 {
		c.Transport = r.http2Conn(port)
		return c
	}
	tr := &http.Transport{
		DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return r.DialPair("", port, false), nil
		},
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return r.DialPair(API, port, true), nil
		},
	}
	r.T.Cleanup(tr.CloseIdleConnections)
	c.Transport = tr
	return c
}

// http2Conn returns an HTTP/2 connection to api.example.com.
func (r *Rig) http2Conn(port uint16) *http.ClientConn {
	r.T.Helper()
	tr := &http.Transport{
		DisableCompression: true,
		Protocols:          new(http.Protocols),
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return r.DialPair(API, port, true, "h2"), nil
		},
	}
	tr.Protocols.SetHTTP2(true)
	conn, err := tr.NewClientConn(r.T.Context(), "https", HostPort(port))
	if err != nil {
		r.T.Fatal(err)
	}
	return conn
}

// HTTPSServer is an upstream that speaks TLS under any name, with HTTP/2 if h2 is set.
func (r *Rig) HTTPSServer(h2 bool, handler http.HandlerFunc) (*httptest.Server, uint16) {
	srv := httptest.NewUnstartedServer(handler)
	srv.EnableHTTP2 = h2
	srv.TLS = &tls.Config{GetCertificate: r.Upstream.ForHello, ClientAuth: tls.RequestClientCert}
	srv.StartTLS()
	r.T.Cleanup(srv.Close)
	return srv, PortOf(r.T, srv.Listener)
}

// HTTPServer is an upstream without TLS.
func (r *Rig) HTTPServer(handler http.HandlerFunc) (*httptest.Server, uint16) {
	srv := httptest.NewServer(handler)
	r.T.Cleanup(srv.Close)
	return srv, PortOf(r.T, srv.Listener)
}

// PortOf returns the port of a listener.
func PortOf(t testing.TB, ln net.Listener) uint16 {
	t.Helper()
	a, err := netip.ParseAddrPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a.Port()
}

// RawServer is a scripted upstream: it calls handle for each connection.
func (r *Rig) RawServer(secure bool, handle func(net.Conn, *bufio.Reader)) uint16 {
	if secure {
		return r.RawServerALPN("http/1.1", handle)
	}
	return r.RawListen(nil, handle)
}

// RawServerALPN is RawServer over TLS, for one protocol.
func (r *Rig) RawServerALPN(protocol string, handle func(net.Conn, *bufio.Reader)) uint16 {
	return r.RawListen(&tls.Config{NextProtos: []string{protocol}, GetCertificate: r.Upstream.ForHello}, handle)
}

// RawListen is RawServer with a TLS configuration; nil: without TLS.
func (r *Rig) RawListen(secure *tls.Config, handle func(net.Conn, *bufio.Reader)) uint16 {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.T.Fatal(err)
	}
	port := PortOf(r.T, ln)
	if secure != nil {
		ln = tls.NewListener(ln, secure)
	}
	r.T.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c, bufio.NewReader(c))
			}()
		}
	}()
	return port
}

// Ask writes a raw request and reads one response.
func Ask(t testing.TB, c net.Conn, r *bufio.Reader, request, method string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return ReadResponse(t, r, method)
}

// ReadResponse reads the response to a request of a method.
func ReadResponse(t testing.TB, r *bufio.Reader, method string) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// ReadAll reads to the end.
func ReadAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return string(b)
}

// API is the host in most tests.
const API = "api.example.com"

// HostPort is API with a port.
func HostPort(port uint16) string { return API + ":" + strconv.Itoa(int(port)) }

// Get sends a GET request and returns the response with its whole body.
func Get(t testing.TB, c *http.Client, url string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res, ReadAll(t, res.Body)
}

// OddPaths are valid request targets whose paths servers interpret differently.
var OddPaths = []string{
	"//", "/a//b", "/./a", "/a/../b", "/..", "/a/.", "/a%2fb", "/a%2Fb", "/a%5cb", `/a\b`, "/%2e%2e/a", "/a%2e", "/a%252fb", "/a%25",
	"/a%00", "/a%0d%0a", "/a;b", "/a/..;/b", "/a%3bb", "/%61dmin", "/a%3fb", "/a%23b", "/%c0%af", "/%ef%bc%8f", "/\xc3\xa9", "/a%ff",
}

// Send sends a request and returns the status and the body of the response.
func Send(t *testing.T, client *http.Client, method, url string, header http.Header, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if end, ok := body.(*Trailed); ok {
		req.Trailer, end.trailer = http.Header{"X-End": nil}, &req.Trailer
		delete(req.Header, "Trailer")
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer res.Body.Close()
	return res.StatusCode, ReadAll(t, res.Body)
}

// Unsized is a body of unknown length.
func Unsized(s string) io.Reader { return struct{ io.Reader }{strings.NewReader(s)} }

// Trailed is a body that ends in a trailer.
type Trailed struct {
	io.Reader
	trailer *http.Header
}

// Read sets the trailer at the end.
func (b *Trailed) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		(*b.trailer).Set("X-End", "yes")
	}
	return n, err
}

// HashOf returns the SHA-256 sum of s in hexadecimal.
func HashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// EchoWebSocket is a WebSocket server that echoes each message, prefixed with the Authorization of the handshake.
func EchoWebSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	for {
		kind, data, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, append([]byte(r.Header.Get("Authorization")+" "), data...)); err != nil {
			return
		}
	}
}
