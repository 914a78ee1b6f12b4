package http1_test

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

func TestWebSocket(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, proxytest.EchoWebSocket)
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/", &websocket.DialOptions{HTTPClient: l.HTTPClient(port, false)})
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(-1)
	for _, size := range []int{1, 125, 70000, 1 << 20} {
		msg := bytes.Repeat([]byte("x"), size)
		if err := c.Write(ctx, websocket.MessageBinary, msg); err != nil {
			t.Fatal(err)
		}
		_, got, err := c.Read(ctx)
		if err != nil || !bytes.Equal(got, append([]byte("Bearer s3cret "), msg...)) {
			t.Fatalf("%d bytes: %v", size, err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, "bye"); err != nil {
		t.Error(err)
	}
	if e := l.Events.Wait(t, 1)[0]; e.Status != 101 || e.Verdict != policy.Allow || e.BytesIn < 1<<20 || e.BytesOut < 1<<20 {
		t.Errorf("event %+v", e)
	}
}

func TestWebSocketIsCutWhenThePolicyTightens(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, proxytest.EchoWebSocket)
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/", &websocket.DialOptions{HTTPClient: l.HTTPClient(port, false)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	l.Policy(proxytest.AllowAll, proxytest.SecretFor("other.example.com", port))
	l.Proxy.Recheck(l.Box.ID)
	if err := c.Write(ctx, websocket.MessageText, []byte("still here")); err != nil {
		t.Fatal("cut by a policy that allows it:", err)
	}
	if _, _, err := c.Read(ctx); err != nil {
		t.Fatal("cut by a policy that allows it:", err)
	}
	l.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	l.Proxy.Recheck(l.Box.ID)
	if _, _, err := c.Read(ctx); err == nil {
		t.Error("goes on under deny-all")
	}
	if e := l.Events.Wait(t, 1)[0]; e.Reason != name.ReasonPolicyChanged {
		t.Errorf("event %+v", e)
	}
}

// TestOtherUpgradesAreStripped asks for h2c, with which a request could leave the judge's sight.
func TestOtherUpgradesAreStripped(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPServer(func(w http.ResponseWriter, r *http.Request) {
		var b strings.Builder
		_ = r.Header.Write(&b)
		_, _ = w.Write([]byte(b.String()))
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair("", port, false)
	for _, up := range []string{"h2c", "TLS/1.0", "websocket, h2c"} {
		res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "+up+"\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", "GET")
		if got := proxytest.ReadAll(t, res.Body); res.StatusCode != 200 || got != "" {
			t.Errorf("%s: %d, forwarded %q", up, res.StatusCode, got)
		}
	}
}
