package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/proxy/http1"
	"boxgate/proxy/http2"
)

// lab is a proxy with one box, a certificate authority that both sides trust, and names that all live on loopback.
type lab struct {
	t      testing.TB
	p      *Proxy
	box    *policy.Box
	events *events
	ca     *authority // signs for upstreams and for the box alike
	front  net.Listener
	orig   netip.Addr // where the box's connections were going

	mu    sync.Mutex
	names map[string][]netip.Addr
	cfg   Config
}

// BoxByAddr, Lookup, Granted and GrantedNames make lab the surroundings of its proxy.
func (l *lab) BoxByAddr(netip.Addr) *policy.Box { return l.box }

func (l *lab) Lookup(_ context.Context, _ *policy.Box, n policy.Name) ([]netip.Addr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	addrs, ok := l.names[n.String()]
	if !ok {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	return addrs, nil
}

func (l *lab) LookupBoth(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	return l.Lookup(ctx, b, n)
}

func (l *lab) Granted(policy.BoxID, policy.Name, netip.Addr) bool  { return false }
func (l *lab) GrantedNames(policy.BoxID, netip.Addr) []policy.Name { return nil }

func newLab(t testing.TB) *lab {
	l := &lab{t: t, box: &policy.Box{ID: "b1"}, ca: newAuthority(t), names: map[string][]netip.Addr{}, orig: netip.MustParseAddr("127.0.0.1")}
	l.events = &events{more: make(chan struct{}, 1)}
	l.cfg = Config{Boxes: l, Resolver: l, Leaves: l.ca, Audit: l.events, Roots: l.ca.pool()}
	l.with(func(*Config) {})
	var err error
	l.front, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.front.Close()
		l.p.CloseBox(l.box.ID)
	})
	return l
}

// with puts a proxy of another configuration in the place of the lab's, before it is used.
func (l *lab) with(change func(*Config)) {
	l.t.Helper()
	change(&l.cfg)
	p, err := New(l.cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	l.p = p
}

// policy puts a policy in force. headers are pattern → name → value.
func (l *lab) policy(spec policy.Spec, headers map[string]map[string]string) {
	l.t.Helper()
	rules, err := policy.ParseHeaders(headers)
	if err != nil {
		l.t.Fatal(err)
	}
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	c, err := policy.Compile(spec, rules, policy.NewProtected(loopback, nil), l.box.Policy.Load().Version()+1)
	if err != nil {
		l.t.Fatal(err)
	}
	l.box.Policy.Store(c)
}

var allowAll = policy.Spec{Mode: policy.ModeAllowAll}

// secret sets one header on a host of a test server.
func secretFor(name string, port uint16) map[string]map[string]string {
	return map[string]map[string]string{name + ":" + strconv.Itoa(int(port)): {"Authorization": "Bearer s3cret"}}
}

// dialPair connects a client to a fresh session and returns the client's end. The session is served until it ends.
func (l *lab) dialPair(name string, port uint16, secure bool, alpn ...string) net.Conn {
	l.t.Helper()
	client, server := l.pair()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.serve(server, name, port, secure)
	}()
	l.t.Cleanup(func() {
		_ = client.Close()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			l.t.Error("the session did not end with its client")
		}
	})
	_ = client.SetDeadline(time.Now().Add(60 * time.Second))
	if !secure {
		return client
	}
	if len(alpn) == 0 {
		alpn = []string{"http/1.1"}
	}
	conn := tls.Client(client, &tls.Config{ServerName: name, RootCAs: l.ca.pool(), NextProtos: alpn})
	if err := conn.Handshake(); err != nil {
		l.t.Fatal(err)
	}
	return conn
}

// pair returns both ends of a new connection.
func (l *lab) pair() (client, server net.Conn) {
	l.mu.Lock() // or two callers could get each other's ends
	defer l.mu.Unlock()
	client, err := net.Dial("tcp", l.front.Addr().String())
	if err != nil {
		l.t.Fatal(err)
	}
	if server, err = l.front.Accept(); err != nil {
		l.t.Fatal(err)
	}
	return client, server
}

func (l *lab) serve(server net.Conn, name string, port uint16, secure bool) {
	defer server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	live := l.p.live.Add(l.box, 10000, cancel)
	defer l.p.live.Remove(live)
	if !live.Attach(server) {
		return
	}
	s := l.p.core.NewSession(l.box, l.p.usages.Of(l.box), live, server)
	s.Orig, s.Port, s.Secure = netip.AddrPortFrom(l.orig, port), port, secure
	if !secure {
		_ = http1.Serve(ctx, s)
		return
	}
	n, err := policy.ParseName(name)
	if err != nil {
		l.t.Error(err)
		return
	}
	conn, err := l.p.terminate(ctx, l.box, server, n, nil)
	if err != nil {
		return
	}
	s.Name, s.Client = n, conn
	if conn.ConnectionState().NegotiatedProtocol == "h2" {
		_ = http2.Serve(ctx, s)
		return
	}
	_ = http1.Serve(ctx, s)
}

// httpClient returns a client of api.example.com. Over HTTP/1.1 its every connection is a session of the lab; over HTTP/2 it
// has one connection for all requests.
func (l *lab) httpClient(port uint16, h2 bool) *http.Client {
	l.t.Helper()
	c := &http.Client{Timeout: 60 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if h2 {
		c.Transport = l.http2Conn(port)
		return c
	}
	tr := &http.Transport{
		DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return l.dialPair("", port, false), nil
		},
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return l.dialPair(api, port, true), nil
		},
	}
	l.t.Cleanup(tr.CloseIdleConnections)
	c.Transport = tr
	return c
}

// http2Conn is one HTTP/2 connection to api.example.com.
func (l *lab) http2Conn(port uint16) *http.ClientConn {
	l.t.Helper()
	tr := &http.Transport{
		DisableCompression: true,
		Protocols:          new(http.Protocols),
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return l.dialPair(api, port, true, "h2"), nil
		},
	}
	tr.Protocols.SetHTTP2(true)
	conn, err := tr.NewClientConn(l.t.Context(), "https", hostPort(port))
	if err != nil {
		l.t.Fatal(err)
	}
	return conn
}

// httpsServer is an upstream that speaks TLS under any name, h2 as well if asked.
func (l *lab) httpsServer(h2 bool, handler http.HandlerFunc) (*httptest.Server, uint16) {
	srv := httptest.NewUnstartedServer(handler)
	srv.EnableHTTP2 = h2
	srv.TLS = &tls.Config{GetCertificate: l.ca.forHello}
	srv.StartTLS()
	l.t.Cleanup(srv.Close)
	return srv, portOf(l.t, srv.Listener)
}

func (l *lab) httpServer(handler http.HandlerFunc) (*httptest.Server, uint16) {
	srv := httptest.NewServer(handler)
	l.t.Cleanup(srv.Close)
	return srv, portOf(l.t, srv.Listener)
}

func portOf(t testing.TB, ln net.Listener) uint16 {
	t.Helper()
	a, err := netip.ParseAddrPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a.Port()
}

// rawServer is an upstream of a script: it hands each connection to handle.
func (l *lab) rawServer(secure bool, handle func(net.Conn, *bufio.Reader)) uint16 {
	if secure {
		return l.rawServerALPN("http/1.1", handle)
	}
	return l.rawListen(nil, handle)
}

// rawServerALPN is rawServer over TLS, for one protocol.
func (l *lab) rawServerALPN(protocol string, handle func(net.Conn, *bufio.Reader)) uint16 {
	return l.rawListen(&tls.Config{NextProtos: []string{protocol}, GetCertificate: l.ca.forHello}, handle)
}

func (l *lab) rawListen(secure *tls.Config, handle func(net.Conn, *bufio.Reader)) uint16 {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	port := portOf(l.t, ln)
	if secure != nil {
		ln = tls.NewListener(ln, secure)
	}
	l.t.Cleanup(func() { _ = ln.Close() })
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

// ask writes a raw request and reads one response.
func ask(t testing.TB, c net.Conn, r *bufio.Reader, request, method string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return readResponse(t, r, method)
}

func readResponse(t testing.TB, r *bufio.Reader, method string) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return string(b)
}
