package ingress

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Input that is no valid request is recorded too, with TLS and without; a served request is recorded only once.
func TestUnreadableRequestsAreTold(t *testing.T) {
	t.Parallel()
	for label, tt := range map[string]struct{ head, status string }{
		"no request":          {"hello\r\n\r\n", "400"},
		"two lengths":         {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"},
		"no host":             {"GET / HTTP/1.1\r\n\r\n", "400"},
		"a head too large":    {"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("y", 100<<10) + "\r\n\r\n", "431"},
		"HTTP of the future":  {"GET / HTTP/3.0\r\nHost: a\r\n\r\n", "505"},
		"an unknown encoding": {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: cow\r\n\r\n", "400"},
		"half a head":         {"GET / HTTP/1.1\r\nHo", ""},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			for _, secure := range []bool{true, false} {
				f := start(t, nil)
				c := f.connect(t, secure, "http/1.1")
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					_, _ = io.WriteString(c, tt.head)
					if tt.status == "" {
						_ = c.(interface{ CloseWrite() error }).CloseWrite()
					}
				}()
				answer, _ := io.ReadAll(c)
				if !strings.HasPrefix(string(answer), strings.TrimSpace("HTTP/1.1 "+tt.status)) && tt.status != "" {
					t.Errorf("TLS %v: answered %q", secure, answer)
				}
				c.Close()
				<-sent
				e := f.event(t, reason(name.ReasonBadRequest))
				if e.Stage != policy.StageURL || e.Verdict != policy.Deny || e.Action != audit.ActionRefuse || e.Error == "" || time.Since(e.Time) > time.Minute {
					t.Errorf("TLS %v: %+v", secure, e)
				}
			}
		})
	}
}

func TestServedRequestsAreToldOnce(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	for _, alpn := range []string{"http/1.1", "h2"} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.roots, NextProtos: []string{alpn}}, ForceAttemptHTTP2: alpn == "h2"}
		for range 3 {
			req, err := http.NewRequest(http.MethodPost, "https://"+f.https+"/", strings.NewReader(strings.Repeat("x", 1<<20)))
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "none" + domain
			tr.TLSClientConfig.ServerName = "none" + domain
			if res, err := tr.RoundTrip(req); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		}
		tr.CloseIdleConnections()
	}
	// A marker in the last event: the events of earlier connections precede it.
	c := f.connect(t, false, "")
	_, _ = io.WriteString(c, "marker\r\n\r\n")
	_, _ = io.ReadAll(c)
	c.Close()
	f.event(t, reason(name.ReasonBadRequest))
	f.mu.Lock()
	defer f.mu.Unlock()
	unread := 0
	for _, e := range f.events {
		if e.Reason == name.ReasonBadRequest {
			unread++
		}
	}
	if unread != 1 {
		t.Errorf("%d requests are said to be unreadable: %+v", unread, f.events)
	}
}

func TestMalformedHTTP2IsTold(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	c := f.connect(t, true, "h2")
	_, _ = io.WriteString(c, http2.ClientPreface)
	framer := http2.NewFramer(c, c)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteRSTStream(1, http2.ErrCodeCancel); err != nil { // for a stream that was never opened
		t.Fatal(err)
	}
	if e := f.event(t, reason(name.ReasonBadRequest)); !strings.Contains(e.Error, "PROTOCOL_ERROR") {
		t.Errorf("%+v", e)
	}
}

// connect opens a connection to one of the listeners.
func (f *fixture) connect(t *testing.T, secure bool, alpn string) net.Conn {
	t.Helper()
	if secure {
		return f.handshake(t, f.dial(t, f.https), "any"+domain, alpn)
	}
	return f.dial(t, f.plain)
}

// connectTo opens a connection to a URL by HTTPS and HTTP/1.1.
func (f *fixture) connectTo(t *testing.T, host string) net.Conn {
	t.Helper()
	return f.handshake(t, f.dial(t, f.https), host, "http/1.1")
}

func (f *fixture) dial(t *testing.T, at string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

func (f *fixture) handshake(t *testing.T, c net.Conn, host, alpn string) net.Conn {
	t.Helper()
	s := tls.Client(c, &tls.Config{RootCAs: f.roots, ServerName: host, NextProtos: []string{alpn}})
	if err := s.Handshake(); err != nil {
		t.Fatal(err)
	}
	return s
}
