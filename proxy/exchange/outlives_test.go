package exchange_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"boxgate/proxy/proxytest"
)

// TestAttackRequestOutlivesItsRule: what was begun under a rule gets no values any more once the rule is gone, however long a
// body or a WebSocket takes; other changes of the policy are no reason to refuse it.
func TestAttackRequestOutlivesItsRule(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rule   func(port uint16) string
		status int
	}{
		"gone": {func(uint16) string { return `{}` }, 502},
		"another value": {func(port uint16) string {
			return `{"` + proxytest.HostPort(port) + `": {"placeholders": {"KEY": "another-value"}, ` + proxytest.Everywhere + `}}`
		}, 502},
		"the same": {func(port uint16) string {
			return `{"` + proxytest.HostPort(port) + `": {"placeholders": {"KEY": "the-value"}, ` + proxytest.Everywhere + `}, "new.test": {"headers": {"X-A": "b"}}}`
		}, 200},
	} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		up := &proxytest.Recorder{}
		_, port := l.HTTPSServer(false, up.Serve)
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the-value"}, `+proxytest.Everywhere+`}}`)
		c := l.DialPair(proxytest.API, port, true)
		r := bufio.NewReader(c)
		body := `["` + proxytest.TokenFor("KEY") + `"]`
		_, _ = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", proxytest.HostPort(port), len(body))
		if line, err := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q %v", line, err)
		}
		_, _ = r.ReadString('\n')
		l.Rules(proxytest.AllowAll, tt.rule(port))
		_, _ = io.WriteString(c, body)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got, _ := up.Take(); res.StatusCode != tt.status || (got != nil) != (tt.status == 200) {
			t.Errorf("%s: %d, forwarded %v", name, res.StatusCode, got != nil)
		}
	}
}

// TestAttackWebSocketOutlivesItsRule: an open WebSocket gets no values of a rule that is gone.
func TestAttackWebSocketOutlivesItsRule(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, proxytest.EchoWebSocket)
	of := func(rule string) string {
		return `{"` + proxytest.HostPort(port) + `": {"placeholders": {"KEY": "the-value"}, "scrub": false` + rule + `}, "elsewhere.test": {"placeholders": {"OTHER": "x"}}}`
	}
	for _, later := range []string{of(""), `{"elsewhere.test": {"placeholders": {"KEY": "the-value"}}}`} {
		l.Rules(proxytest.AllowAll, of(", "+proxytest.Everywhere))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		c, _, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/", &websocket.DialOptions{HTTPClient: l.HTTPClient(port, false)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		say := func() (string, error) {
			if err := c.Write(ctx, websocket.MessageText, []byte(proxytest.TokenFor("KEY"))); err != nil {
				return "", err
			}
			_, got, err := c.Read(ctx)
			return string(got), err
		}
		if got, err := say(); err != nil || got != " the-value" {
			t.Fatalf("%q %v", got, err)
		}
		l.Rules(proxytest.AllowAll, of(", "+proxytest.Everywhere+`, "headers": {"X-A": "b"}`))
		if got, err := say(); err != nil || got != " the-value" {
			t.Errorf("after another change: %q %v", got, err)
		}
		l.Rules(proxytest.AllowAll, later)
		if got, err := say(); err == nil {
			t.Errorf("%s: %q", later, got)
		}
	}
}
