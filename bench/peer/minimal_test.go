package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"boxgate/bench/load"
	"boxgate/bench/origin"
)

// anchor starts the minimal proxy of a role in front of a server that requires the header, and returns its address.
func anchor(t *testing.T, role Role) string {
	t.Helper()
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header.Values(origin.Header)) != 1 || r.Header.Get(origin.Header) != origin.Value {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Length", "1024")
		_, _ = w.Write(make([]byte, 1024))
	}))
	up.EnableHTTP2 = true
	up.StartTLS()
	t.Cleanup(up.Close)
	roots := x509.NewCertPool()
	roots.AddCert(up.Certificate())
	m := newMinimal(role, up.Listener.Addr().String(), up.TLS.Certificates[0], roots)
	m.client.ServerName = "example.com" // that of the test server's certificate
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = m.accept(ln) }()
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

func TestMinimalLoopForwards(t *testing.T) {
	for kind, role := range map[load.Kind]Role{load.KeepAlive: Intercept, load.Fresh: Intercept} {
		o := load.Options{Kind: kind, Dial: anchor(t, role), Name: "example.com", Path: "/", Size: 1024, Conns: 3, Count: 20}
		if r, err := load.Run(t.Context(), o); err != nil || r.Units != 20 || r.Errors != 0 {
			t.Errorf("%s: %+v, %v", kind, r, err)
		}
	}
}

// The forwarder sets the header on every request of a connection. The first request fills HPACK's table.
func TestMinimalFramesForward(t *testing.T) {
	address := anchor(t, InterceptH2)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	for i := range 10 {
		r, err := http.NewRequestWithContext(context.Background(), "GET", "https://"+address+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			t.Errorf("request %d: %s over %s", i, resp.Status, resp.Proto)
		}
	}
}

func TestRewriteSetsOneHeader(t *testing.T) {
	head := "GET /a:b HTTP/1.1\r\nHost: x\r\nx-inject: theirs\r\nConnection: keep-alive\r\n\r\n"
	got, err := rewrite(nil, []byte(head))
	if want := "GET /a:b HTTP/1.1\r\nHost: x\r\nX-Inject: Bearer tok\r\n\r\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"GET / HTTP/1.1\r\nContent-Length: 1\r\n\r\n", "GET / HTTP/1.1"} {
		if got, err := rewrite(nil, []byte(bad)); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func FuzzRewrite(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	f.Fuzz(func(_ *testing.T, head string) { _, _ = rewrite(nil, []byte(head)) })
}
