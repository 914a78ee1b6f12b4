package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/handshake"
	"boxgate/policy"

	"github.com/coder/websocket"
)

func echoServer(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(dump(r), "tok") {
			t.Error("the credential reached the box")
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func dialWebSocket(t *testing.T, f *fixture, host, token string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return dialWith(t, f, host, header)
}

func dialWith(t *testing.T, f *fixture, host string, header http.Header) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, resp, err := websocket.Dial(ctx, "wss://"+host+domain+"/ws?token=tok&boxgate_token=tok", &websocket.DialOptions{HTTPClient: f.client(t, false), HTTPHeader: header})
	if err == nil {
		t.Cleanup(func() { _ = c.CloseNow() })
	}
	return c, resp, err
}

func echo(ctx context.Context, c *websocket.Conn, text string) error {
	if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		return err
	}
	_, got, err := c.Read(ctx)
	if err == nil && string(got) != text {
		err = fmt.Errorf("echo %q of %q", got, text)
	}
	return err
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.expose("ws", echoServer(t), Auth{Bearer: digest(BearerDigest("tok"))})
	if _, resp, err := dialWebSocket(t, f, "ws", ""); err == nil || resp.StatusCode != 401 {
		t.Fatal("a WebSocket opened with its credential in the query")
	}
	if f.woken.Load() != 0 {
		t.Fatal("the box was woken without a credential")
	}
	c, _, err := dialWebSocket(t, f, "ws", "tok")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"hello", strings.Repeat("x", 20_000)} {
		if err := echo(t.Context(), c, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	e := f.event(t, func(e audit.Event) bool { return e.Status == 101 })
	if e.Verdict != policy.Allow || e.BytesIn < 20_000 || e.BytesOut < 20_000 || e.Path != "/ws" {
		t.Errorf("event: %+v", e)
	}
}

// An upgrade to a protocol other than WebSocket would open a tunnel without checks.
func TestOtherUpgradesAreNotPassedOn(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	resp := f.raw(t, "GET / HTTP/1.1\r\nHost: one.preview.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if got := dump(box.last(t)); strings.Contains(got, "h2c") || strings.Contains(got, "Settings") {
		t.Errorf("the upgrade reached the box:\n%s", got)
	}
}

// Shutdown waits for requests, and cuts a WebSocket at its deadline.
func TestShutdownCutsWebSockets(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.expose("ws", echoServer(t), Auth{Bearer: digest(BearerDigest("tok"))})
	c, _, err := dialWebSocket(t, f, "ws", "tok")
	if err != nil {
		t.Fatal(err)
	}
	if err := echo(t.Context(), c, "up"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Error("the socket outlived the shutdown")
	}
}

// Only a complete handshake becomes a tunnel: with the exact fields of RFC 6455.
func TestHalfHandshakesOfABox(t *testing.T) {
	t.Parallel()
	accept := handshake.Accept("AAAAAAAAAAAAAAAAAAAAAA==")
	for name, head := range map[string]string{
		"another name":  "Connection: Upgrade\r\nUpgrade: websocket\r\nSec_WebSocket_Accept: " + accept + "\r\n",
		"no Connection": "Upgrade: websocket\r\nSec-WebSocket-Accept: " + accept + "\r\n",
		"two protocols": "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\nSec-WebSocket-Accept: " + accept + "\r\n",
	} {
		f := start(t, nil)
		f.script(t, "one", answers("HTTP/1.1 101 Switching Protocols\r\n"+head+"\r\n"))
		resp := f.raw(t, "GET / HTTP/1.1\r\nHost: one.preview.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
		if resp.StatusCode != http.StatusBadGateway {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}
