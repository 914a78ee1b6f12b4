package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
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
			return `{"` + hostPort(port) + `": {"placeholders": {"KEY": "another-value"}, ` + everywhere + `}}`
		}, 502},
		"the same": {func(port uint16) string {
			return `{"` + hostPort(port) + `": {"placeholders": {"KEY": "the-value"}, ` + everywhere + `}, "new.test": {"headers": {"X-A": "b"}}}`
		}, 200},
	} {
		l := newRig(t, allowAll, patient)
		up := &recorder{}
		_, port := l.httpsServer(false, up.serve)
		l.rules(allowAll, `{"`+hostPort(port)+`": {"placeholders": {"KEY": "the-value"}, `+everywhere+`}}`)
		c := l.dialPair(api, port, true)
		r := bufio.NewReader(c)
		body := `["` + tokenFor("KEY") + `"]`
		_, _ = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", hostPort(port), len(body))
		if line, err := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q %v", line, err)
		}
		_, _ = r.ReadString('\n')
		l.rules(allowAll, tt.rule(port))
		_, _ = io.WriteString(c, body)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got, _ := up.take(); res.StatusCode != tt.status || (got != nil) != (tt.status == 200) {
			t.Errorf("%s: %d, forwarded %v", name, res.StatusCode, got != nil)
		}
	}
}

// TestAttackWebSocketOutlivesItsRule: an open WebSocket gets no values of a rule that is gone.
func TestAttackWebSocketOutlivesItsRule(t *testing.T) {
	t.Parallel()
	l := newRig(t, allowAll, patient)
	_, port := l.httpsServer(false, echoWebSocket)
	of := func(rule string) string {
		return `{"` + hostPort(port) + `": {"placeholders": {"KEY": "the-value"}, "scrub": false` + rule + `}, "elsewhere.test": {"placeholders": {"OTHER": "x"}}}`
	}
	for _, later := range []string{of(""), `{"elsewhere.test": {"placeholders": {"KEY": "the-value"}}}`} {
		l.rules(allowAll, of(", "+everywhere))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		c, _, err := websocket.Dial(ctx, "wss://"+hostPort(port)+"/", &websocket.DialOptions{HTTPClient: l.httpClient(port, false)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		say := func() (string, error) {
			if err := c.Write(ctx, websocket.MessageText, []byte(tokenFor("KEY"))); err != nil {
				return "", err
			}
			_, got, err := c.Read(ctx)
			return string(got), err
		}
		if got, err := say(); err != nil || got != " the-value" {
			t.Fatalf("%q %v", got, err)
		}
		l.rules(allowAll, of(", "+everywhere+`, "headers": {"X-A": "b"}`))
		if got, err := say(); err != nil || got != " the-value" {
			t.Errorf("after another change: %q %v", got, err)
		}
		l.rules(allowAll, later)
		if got, err := say(); err == nil {
			t.Errorf("%s: %q", later, got)
		}
	}
}
