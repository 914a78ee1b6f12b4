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
	"testing"
	"time"

	"boxgate/policy"
)

var allowAll = policy.Spec{Mode: policy.ModeAllowAll}

// secretFor sets one header on a host of a test server.
func secretFor(name string, port uint16) map[string]map[string]string {
	return map[string]map[string]string{name + ":" + strconv.Itoa(int(port)): {"Authorization": "Bearer s3cret"}}
}

// intercepted are header rules under which TLS to api.example.com and its siblings is terminated on a port, for tests that are
// not about rules.
func intercepted(port uint16) map[string]map[string]string {
	return map[string]map[string]string{"*.example.com:" + strconv.Itoa(int(port)): {"X-Rule": "in force"}}
}

// patient keeps a slow test from being taken for a client whose server speaks first.
func patient(c *Config) { c.SilenceTimeout = 10 * time.Second }

// dialPair connects as the box to the port at orig. If secure it makes a TLS handshake as name, which must be intercepted. Names
// without an answer of their own lead to loopback, where the web servers are.
func (r *rig) dialPair(name string, port uint16, secure bool, alpn ...string) net.Conn {
	r.t.Helper()
	if secure && !r.box.Policy.Load().Intercepts(mustName(r.t, name), port) {
		r.t.Fatalf("TLS to %s port %d is not intercepted under the policy", name, port)
	}
	r.names.setOthers(loopback)
	client := r.dialAs(r.box, netip.AddrPortFrom(r.orig, port))
	if !secure {
		return client
	}
	if len(alpn) == 0 {
		alpn = []string{"http/1.1"}
	}
	conn := tls.Client(client, &tls.Config{ServerName: name, RootCAs: r.boxCA.pool(), NextProtos: alpn})
	if err := conn.Handshake(); err != nil {
		r.t.Fatal(err)
	}
	return conn
}

// dialAs connects as a box to dst. The proxy must be done with the connection soon after the client has closed it.
func (r *rig) dialAs(box *policy.Box, dst netip.AddrPort) net.Conn {
	r.t.Helper()
	from := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(box.V4, 0))}
	client, err := from.Dial("tcp", r.front(dst))
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.clients[box.ID]++
	r.mu.Unlock()
	r.t.Cleanup(func() {
		_ = client.Close()
		r.mu.Lock()
		r.clients[box.ID]--
		left := r.clients[box.ID]
		r.mu.Unlock()
		await(r.t, "the end of a connection whose client is gone", func() bool { return len(r.p.live.Of(box.ID)) <= left })
	})
	_ = client.SetDeadline(time.Now().Add(60 * time.Second))
	return client
}

// front is listen, once for each destination.
func (r *rig) front(dst netip.AddrPort) string {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fronts[dst] == "" {
		r.fronts[dst] = r.listenLocked(dst)
	}
	return r.fronts[dst]
}

// httpClient returns a client of api.example.com. Over HTTP/1.1 every connection is a new one; over HTTP/2 it
// has one connection for all requests.
func (r *rig) httpClient(port uint16, h2 bool) *http.Client {
	r.t.Helper()
	c := &http.Client{Timeout: 60 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if h2 {
		c.Transport = r.http2Conn(port)
		return c
	}
	tr := &http.Transport{
		DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return r.dialPair("", port, false), nil
		},
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return r.dialPair(api, port, true), nil
		},
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	c.Transport = tr
	return c
}

// http2Conn is one HTTP/2 connection to api.example.com.
func (r *rig) http2Conn(port uint16) *http.ClientConn {
	r.t.Helper()
	tr := &http.Transport{
		DisableCompression: true,
		Protocols:          new(http.Protocols),
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return r.dialPair(api, port, true, "h2"), nil
		},
	}
	tr.Protocols.SetHTTP2(true)
	conn, err := tr.NewClientConn(r.t.Context(), "https", hostPort(port))
	if err != nil {
		r.t.Fatal(err)
	}
	return conn
}

// httpsServer is an upstream that speaks TLS under any name, h2 as well if asked.
func (r *rig) httpsServer(h2 bool, handler http.HandlerFunc) (*httptest.Server, uint16) {
	srv := httptest.NewUnstartedServer(handler)
	srv.EnableHTTP2 = h2
	srv.TLS = &tls.Config{GetCertificate: r.upstream.forHello, ClientAuth: tls.RequestClientCert}
	srv.StartTLS()
	r.t.Cleanup(srv.Close)
	return srv, portOf(r.t, srv.Listener)
}

func (r *rig) httpServer(handler http.HandlerFunc) (*httptest.Server, uint16) {
	srv := httptest.NewServer(handler)
	r.t.Cleanup(srv.Close)
	return srv, portOf(r.t, srv.Listener)
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
func (r *rig) rawServer(secure bool, handle func(net.Conn, *bufio.Reader)) uint16 {
	if secure {
		return r.rawServerALPN("http/1.1", handle)
	}
	return r.rawListen(nil, handle)
}

// rawServerALPN is rawServer over TLS, for one protocol.
func (r *rig) rawServerALPN(protocol string, handle func(net.Conn, *bufio.Reader)) uint16 {
	return r.rawListen(&tls.Config{NextProtos: []string{protocol}, GetCertificate: r.upstream.forHello}, handle)
}

func (r *rig) rawListen(secure *tls.Config, handle func(net.Conn, *bufio.Reader)) uint16 {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	port := portOf(r.t, ln)
	if secure != nil {
		ln = tls.NewListener(ln, secure)
	}
	r.t.Cleanup(func() { _ = ln.Close() })
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
