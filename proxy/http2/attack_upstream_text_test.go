package http2_test

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"boxgate/proxy/proxytest"
)

// TestAttackUpstreamTextInErrors: a server knows the secret and writes it where errors of the HTTP/2 library quote it. Neither
// the log nor the answer to the box may quote text of the server.
func TestAttackUpstreamTextInErrors(t *testing.T) {
	t.Parallel()
	const secret = "sk-canary-0123456789"
	for name, misdeed := range map[string]func(s *rogue, stream uint32){
		"GOAWAY": func(s *rogue, stream uint32) {
			_ = s.WriteGoAway(stream, http2.ErrCodeEnhanceYourCalm, []byte(secret))
			_ = s.conn.Close()
		},
		"GOAWAY without an error": func(s *rogue, stream uint32) {
			_ = s.WriteGoAway(stream, http2.ErrCodeNo, []byte(secret))
			_ = s.conn.Close()
		},
		"GOAWAY in the body": func(s *rogue, stream uint32) {
			s.head(stream, false, ":status", "200")
			_ = s.WriteGoAway(stream, http2.ErrCodeProtocol, []byte(secret))
			_ = s.conn.Close()
		},
		"name of a field": func(s *rogue, stream uint32) {
			s.head(stream, true, ":status", "200", "X "+secret, "1")
		},
		"capital letters": func(s *rogue, stream uint32) {
			s.head(stream, true, ":status", "200", "Sk-canary-0123456789", "1")
		},
		"pseudo field": func(s *rogue, stream uint32) {
			s.head(stream, true, ":status", "200", ":"+secret, "1")
		},
		"status": func(s *rogue, stream uint32) { s.head(stream, true, ":status", secret) },
		"length": func(s *rogue, stream uint32) {
			s.head(stream, true, ":status", "200", "content-length", secret)
		},
		"trailer": func(s *rogue, stream uint32) {
			s.head(stream, false, ":status", "200")
			s.head(stream, true, "X "+secret, "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			var conns atomic.Int32
			port := rogueServer(l, misdeed, &conns)
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			c := l.HTTPClient(port, true)
			got := ""
			if res, err := c.Get("https://" + proxytest.HostPort(port) + "/bad"); err == nil {
				body, _ := io.ReadAll(res.Body) // it may be broken off
				got = fmt.Sprint(res.Status, res.Header, string(body))
				_ = res.Body.Close()
			}
			for _, e := range l.Events.Wait(t, 1) {
				got += fmt.Sprintf("%+v", e)
			}
			if strings.Contains(strings.ToLower(got), "canary") {
				t.Errorf("the log or the box shows %s", got)
			}
		})
	}
}
