package probe

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/doctor/cause"
)

// ask runs a plan against a server on loopback, whose certificate is for example.com.
func ask(t *testing.T, addr net.Addr, roots []byte, edit func(*Plan)) Report {
	t.Helper()
	at := addr.(*net.TCPAddr).AddrPort()
	p := Plan{Host: "example.com", Port: at.Port(), Path: "/", Addrs: []netip.Addr{at.Addr().Unmap()}, Roots: roots}
	if edit != nil {
		edit(&p)
	}
	r, err := Run(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// tlsServer starts a server with a configuration, and returns its certificate in PEM.
func tlsServer(t *testing.T, edit func(*httptest.Server)) (*httptest.Server, []byte) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "ok") }))
	s.EnableHTTP2, s.TLS = true, &tls.Config{}
	edit(s)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// TestRun: the causes that are found at servers on loopback.
func TestRun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		edit    func(*httptest.Server)
		trusted bool
		want    string
	}{
		"ordinary":  {func(*httptest.Server) {}, true, "[]"},
		"untrusted": {func(*httptest.Server) {}, false, "[cert-untrusted]"},
		"legacy suite": {func(s *httptest.Server) {
			s.TLS = &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256}}
		}, true, "[suite-legacy]"},
		"TLS 1.1": {func(s *httptest.Server) {
			s.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
		}, true, "[tls-old]"},
		"client certificate": {func(s *httptest.Server) { s.TLS.ClientAuth = tls.RequireAnyClientCert }, true, "[client-certificate]"},
		"unknown ALPN":       {func(s *httptest.Server) { s.EnableHTTP2 = false; s.TLS.NextProtos = []string{"acme-tls/1"} }, true, "[alpn-unknown]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, root := tlsServer(t, tt.edit)
			s.Config.ErrorLog = nil
			if !tt.trusted {
				root = nil
			}
			r := ask(t, s.Listener.Addr(), root, nil)
			if got := fmt.Sprint(r.Causes); got != tt.want {
				t.Errorf("%s, want %s: %+v", got, tt.want, r)
			}
		})
	}
}

// TestPlainServers: a server without TLS is recognised, whether it speaks first or waits, and its text is bounded.
func TestPlainServers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handle func(net.Conn)
		want   []cause.ID
	}{
		"HTTP": {func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		}, []cause.ID{cause.NoTLS}},
		"a banner": {func(c net.Conn) { _, _ = io.WriteString(c, "220 "+strings.Repeat("x", 4096)+"\r\n") }, []cause.ID{cause.NoTLS, cause.NotHTTP}},
		"the end":  {func(net.Conn) {}, []cause.ID{cause.NoAnswer}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						tt.handle(c)
					}()
				}
			}()
			r := ask(t, ln.Addr(), nil, nil)
			if !slices.Equal(r.Causes, tt.want) || len(r.Plain) > maxText {
				t.Errorf("%v, want %v: %+v", r.Causes, tt.want, r)
			}
		})
	}
}

// TestIdle: a connection is watched after its response.
func TestIdle(t *testing.T) {
	t.Parallel()
	for patience, want := range map[time.Duration]string{time.Minute: "open after 300ms", time.Millisecond: "closed after 0.0 s"} {
		s, root := tlsServer(t, func(s *httptest.Server) { s.Config.IdleTimeout = patience })
		if r := ask(t, s.Listener.Addr(), root, func(p *Plan) { p.Idle = 300 * time.Millisecond }); r.Idle != want {
			t.Errorf("%v: %q, want %q", patience, r.Idle, want)
		}
	}
}

// TestAddresses: dead addresses are reported, and the next one is used.
func TestAddresses(t *testing.T) {
	t.Parallel()
	s, root := tlsServer(t, func(*httptest.Server) {})
	r := ask(t, s.Listener.Addr(), root, func(p *Plan) { p.Addrs = append([]netip.Addr{netip.MustParseAddr("127.0.0.99")}, p.Addrs...) })
	if len(r.Attempts) != 2 || r.Attempts[0].Error == "" || !slices.Equal(r.Causes, []cause.ID{cause.DeadAddress}) {
		t.Errorf("%+v", r)
	}
	r = ask(t, s.Listener.Addr(), root, func(p *Plan) { p.Addrs = []netip.Addr{netip.MustParseAddr("127.0.0.99")} })
	if !slices.Equal(r.Causes, []cause.ID{cause.Unreachable}) || len(r.Clients) != 0 {
		t.Errorf("%+v", r)
	}
}
