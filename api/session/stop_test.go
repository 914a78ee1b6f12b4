package session

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"boxgate/api"
)

// TestStop: a gateway that stops ends all sessions, whether their client listens, pauses, has not sent the start frame,
// or might reconnect. Clients that listen receive an error frame and a close status.
func TestStop(t *testing.T) {
	t.Parallel()
	var running atomic.Int64
	withServer(t, &host{program: func(ctx context.Context, _ io.Reader, out io.Writer, _ <-chan string) int {
		running.Add(1)
		defer running.Add(-1)
		for ctx.Err() == nil {
			_, _ = out.Write(make([]byte, 16<<10))
			time.Sleep(time.Millisecond)
		}
		return 137
	}}, func(c *client) {
		broken := c.dial("")
		paused, silent := c.dial(""), c.dial("")
		for _, conn := range []*websocket.Conn{broken, paused} {
			first := c.conn
			c.conn = conn
			c.send(start(m{"reattach": true}))
			c.expectFrame("started")
			c.conn = first
		}
		_ = broken.CloseNow()
		c.send(start(nil))
		c.expectFrame("started")
		synctest.Wait()
		if n := running.Load(); n != 3 {
			t.Fatalf("%d commands", n)
		}
		c.e.Stop()
		for name, conn := range map[string]*websocket.Conn{"with a command": c.conn, "silent": silent} {
			if message, code := last(c, conn); message != "the gateway is stopping" || code != websocket.StatusGoingAway {
				t.Errorf("%s: %q, %d", name, message, code)
			}
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Second)
		defer cancel()
		if err := c.e.Wait(ctx); err != nil || running.Load() != 0 {
			t.Errorf("%d commands go on: %v", running.Load(), err)
		}
		if _, err := c.e.open.acquireSlot(api.Caller{}, "b"); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("another session: %v", err)
		}
		_ = paused.CloseNow()
	})
}

// last reads a connection to its end and returns the message of the last error frame and the close status.
func last(c *client, conn *websocket.Conn) (message string, code websocket.StatusCode) {
	for {
		_, data, err := conn.Read(c.t.Context())
		if err != nil {
			return message, websocket.CloseStatus(err)
		}
		var f toClient
		if err := json.Unmarshal(data, &f); err != nil {
			c.t.Fatal(err)
		}
		message = f.Message
	}
}

// TestReplacedConnection: the end of a connection, for whatever reason, does not affect the session if the client has
// already reconnected.
func TestReplacedConnection(t *testing.T) {
	t.Parallel()
	var killed, forgotten bool
	s := &session{kill: func(error) { killed = true }, forget: func() { forgotten = true }}
	lines := make([]*connection, 2)
	for i := range lines {
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		lines[i] = &connection{ctx: ctx, cancel: end, drained: make(chan struct{})}
		close(lines[i].drained)
		s.attach(lines[i])
	}
	s.disconnect(lines[0], false)
	s.disconnect(lines[0], true)
	if killed || forgotten || s.reconnectTimer != nil {
		t.Error("the connection that was replaced ended the session")
	}
	s.disconnect(lines[1], false)
	if !killed || !forgotten {
		t.Error("the session goes on without a connection")
	}
}
