package webhook

import (
	"bufio"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/policy"
)

// frontend answers every request with f, and records the box.
type frontend struct {
	t   *testing.T
	f   func(r *http.Request) string
	box atomic.Value
	n   atomic.Int64
}

func (f *frontend) ServeFor(box *policy.Box, tcp *net.TCPConn) {
	f.box.Store(box)
	f.n.Add(1)
	go func() {
		defer tcp.Close()
		r, err := http.ReadRequest(bufio.NewReader(tcp))
		if err != nil {
			f.t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(tcp, f.f(r))
	}()
}

func answer(status, kind, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, kind, len(body), body)
}

var box = &policy.Box{ID: "box", V4: netip.MustParseAddr("10.200.0.7")}

// Requests pass through the proxy as the box's traffic, whatever their destination.
func TestRequestsAreTheBoxes(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://example.com/a?b=c", "http://127.0.0.1:9/a?b=c", "http://localhost:9/a?b=c", "http://[::1]:9/a?b=c"} {
		p := &frontend{t: t, f: func(r *http.Request) string { return answer("200 OK", "text/plain", r.RequestURI) }}
		got, err := Client(p, box, x509.NewCertPool()).Post(url, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(got.Body)
		if got.Body.Close(); err != nil || string(text) != url || p.box.Load() != box {
			t.Errorf("%s: %q, %v, for %v", url, text, err, p.box.Load())
		}
	}
}

func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	p := &frontend{t: t, f: func(*http.Request) string {
		return answer("403 Forbidden", "application/problem+json", `{"title":"Forbidden","detail":"The address is protected.","reason":"protected_range"}`)
	}}
	_, err := Client(p, box, x509.NewCertPool()).Get("https://169.254.169.254/") //nolint:bodyclose // there is none
	if err == nil || !strings.Contains(err.Error(), "The address is protected. (protected_range)") {
		t.Error(err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	p := &frontend{t: t, f: func(*http.Request) string {
		return "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	}}
	got, err := Client(p, box, x509.NewCertPool()).Get("http://example.com/")
	if err != nil {
		t.Fatal(err)
	}
	if got.Body.Close(); got.StatusCode != http.StatusFound || p.n.Load() != 1 {
		t.Errorf("%s after %d requests", got.Status, p.n.Load())
	}
}
