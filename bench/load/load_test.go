package load

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// serve starts a TLS server whose certificate is for example.com.
func serve(t *testing.T, h http.HandlerFunc) (address string) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func kilobyte(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write(make([]byte, 1024))
}

func TestCountedRequests(t *testing.T) {
	address := serve(t, kilobyte)
	for _, kind := range []Kind{KeepAlive, Fresh} {
		r, err := Run(t.Context(), Options{Kind: kind, Dial: address, Name: "example.com", Path: "/", Size: 1024, Conns: 3, Count: 20})
		if err != nil || r.Units != 20 || r.Errors != 0 || !strings.HasPrefix(r.TLS, "TLS 1.3") {
			t.Errorf("%s: %+v, %v", kind, r, err)
		}
	}
}

func TestRequestsOverHTTP2(t *testing.T) {
	address := serve(t, kilobyte)
	o := Options{Kind: HTTP2, Dial: address, Name: "example.com", Path: "/", Size: 1024, Conns: 2, Streams: 4, Window: 200 * time.Millisecond}
	if r, err := Run(t.Context(), o); err != nil || r.Units == 0 || r.Errors != 0 || r.P99 < r.P50 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestUploads(t *testing.T) {
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n != 1<<20 {
			w.WriteHeader(http.StatusBadRequest)
		}
		kilobyte(w, r)
	})
	r, err := Run(t.Context(), Options{Kind: Upload, Dial: address, Name: "example.com", Path: "/", Size: 1 << 20, Conns: 1, Count: 3})
	if err != nil || r.Units != 3<<20 || r.Errors != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Wrong answers must not count as work.
func TestWrongAnswersAreErrors(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"short":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) },
	} {
		for _, kind := range []Kind{KeepAlive, Fresh} {
			r, err := Run(t.Context(), Options{Kind: kind, Dial: serve(t, handler), Name: "example.com", Path: "/", Size: 1024, Conns: 1, Count: 2})
			if err == nil || r.Units != 0 || r.Errors == 0 {
				t.Errorf("%s, %s: %+v, %v", name, kind, r, err)
			}
		}
	}
}

func TestAnotherCertificateIsAnError(t *testing.T) {
	_, err := Run(t.Context(), Options{Kind: Fresh, Dial: serve(t, kilobyte), Name: "example.org", Path: "/", Size: 1024, Conns: 1, Count: 1})
	if err == nil || !strings.Contains(err.Error(), "example.org") {
		t.Errorf("got %v", err)
	}
}

func TestTunnels(t *testing.T) {
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
			if hello, err := ReadRecord(c); err == nil && bytes.Contains(hello, []byte("example.com")) {
				_, _ = c.Write(make([]byte, 1024))
			}
			_ = c.Close()
		}
	}()
	r, err := Run(t.Context(), Options{Kind: Tunnel, Dial: ln.Addr().String(), Name: "example.com", Conns: 2, Count: 10})
	if err != nil || r.Units != 10 || r.Errors != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestQueries(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: conn, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if name := q.Question[0].Name; strings.HasSuffix(name, ".example.com.") {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(192, 0, 2, 1)}}
		} else {
			m.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = server.Shutdown() })
	o := Options{Kind: DNS, Dial: conn.LocalAddr().String(), Name: "n%d.example.com", Names: 7, Conns: 2, Streams: 3, Count: 30}
	if r, err := Run(t.Context(), o); err != nil || r.Units != 30 || r.Errors != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	o.Name = "n%d.example.org"
	if r, err := Run(t.Context(), o); err == nil || r.Errors == 0 {
		t.Errorf("refused, and not expected to be: %+v, %v", r, err)
	}
	o.Refused = true
	if r, err := Run(t.Context(), o); err != nil || r.Errors != 0 {
		t.Errorf("refused, as expected: %+v, %v", r, err)
	}
}

func TestIdleConnections(t *testing.T) {
	o := Options{Kind: Idle, Dial: serve(t, kilobyte), Name: "example.com", Path: "/", Size: 1024, Steps: []int{2, 5}}
	r, err := Run(t.Context(), o)
	if err != nil || r.Units != 5 || len(r.Held) != 3 || r.Held[2].Conns != 5 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestQueryIsWellFormed(t *testing.T) {
	var m dns.Msg
	if err := m.Unpack(appendQuery(nil, 77, "a.example.com")); err != nil {
		t.Fatal(err)
	}
	if m.Id != 77 || !m.RecursionDesired || m.Question[0] != (dns.Question{Name: "a.example.com.", Qtype: dns.TypeA, Qclass: dns.ClassINET}) {
		t.Errorf("got %v", m)
	}
}

func TestResponses(t *testing.T) {
	for text, want := range map[string]int64{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello":                                                      5,
		"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n": 21,
		"HTTP/1.1 200 OK\r\n\r\n":                                     -1,
		"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n":               -1,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n": -1,
		"220 ready\r\n\r\n":                                           -1,
	} {
		n, err := readAll(text)
		if (err != nil) != (want < 0) || err == nil && n != want {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

func readAll(text string) (int64, error) {
	r := bufio.NewReader(strings.NewReader(text))
	h, err := readHead(r)
	if err != nil {
		return 0, err
	}
	return h.discard(r, r)
}

func FuzzResponse(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := readAll(text); err == nil && (n < 0 || n > int64(len(text))) {
			t.Errorf("%d bytes of body in %d", n, len(text))
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0x80}, 12), true)
	f.Fuzz(func(_ *testing.T, message []byte, refused bool) {
		if len(message) >= 12 {
			_ = verifyAnswer(message, refused)
		}
	})
}
