package exec

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/history"
	"boxgate/api/strict"
	"boxgate/policy"
)

// brokenWriter is the response to a client whose connection is broken.
type brokenWriter struct {
	http.ResponseWriter
	written int
}

func (w *brokenWriter) Write([]byte) (int, error) {
	w.written++
	return 0, errors.New("broken pipe")
}

// TestOutputForNobodyIsNotTaken: after the client has disconnected, writes fail without touching the broken connection
// again.
func TestOutputForNobodyIsNotTaken(t *testing.T) {
	t.Parallel()
	w := &brokenWriter{ResponseWriter: httptest.NewRecorder()}
	s := newExecStream(w, httptest.NewRequestWithContext(t.Context(), "POST", "/", nil))
	for range 3 {
		if n, err := s.stream("stdout").Write([]byte("output")); n != 0 || !errors.Is(err, errUnread) {
			t.Errorf("%d bytes were taken: %v", n, err)
		}
	}
	if w.written != 1 {
		t.Errorf("%d writes to a broken connection", w.written)
	}
}

// chatty is a host with one box, whose commands print until they are killed.
type chatty struct {
	ended chan struct{} // closed once a command has ended
}

func (chatty) Box(context.Context, string) (api.Box, error) { return api.Box{ID: "box"}, nil }

func (h chatty) Exec(ctx context.Context, _ policy.BoxID, _ api.ExecRequest, stdout, _ io.Writer) (api.ExecResult, error) {
	defer close(h.ended)
	for ctx.Err() == nil {
		_, _ = stdout.Write([]byte("more"))
	}
	return api.ExecResult{}, context.Cause(ctx)
}

// unread is the response to a client that does not read: a write blocks until a deadline is set, which then expires
// immediately.
type unread struct {
	http.ResponseWriter
	waits func() // called by a blocked write
	stuck chan struct{}

	mu       sync.Mutex
	deadline time.Time
}

func (u *unread) Write([]byte) (int, error) {
	u.waits()
	<-u.stuck
	return 0, os.ErrDeadlineExceeded
}

func (u *unread) SetWriteDeadline(t time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.deadline = t; !t.IsZero() && time.Until(t) < time.Minute {
		close(u.stuck)
	}
	return nil
}

// A command is cancelled while it blocks on a client that does not read. The command and the request still end, and the
// next request on the connection has no leftover deadline.
func TestCancelledCommandDoesNotWaitForItsClient(t *testing.T) {
	t.Parallel()
	h := chatty{ended: make(chan struct{})}
	e := &Endpoints{Boxes: h, Host: h, History: history.New(nil), Bodies: strict.Bodies{Most: 1 << 20}}
	waiting := make(chan struct{})
	u := &unread{ResponseWriter: httptest.NewRecorder(), waits: sync.OnceFunc(func() { close(waiting) }), stuck: make(chan struct{})}
	r := httptest.NewRequestWithContext(access.WithCredential(api.WithCaller(t.Context(), api.Caller{Role: api.RoleAdmin}), func() bool { return true }), "POST", "/", strings.NewReader(`{"command":["yes"]}`))
	r.SetPathValue("id", "box")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if rep, err := e.streamed(e.readCommand)(u, r); err != nil || !rep.Written {
			t.Errorf("%+v, %v", rep, err)
		}
	}()
	<-waiting
	run := e.History.Runs("box")[0]
	if view, ok := e.History.Cancel("box", run.ID); run.Status != "running" || !ok || view.Status != "cancelled" {
		t.Errorf("%+v", view)
	}
	for name, c := range map[string]chan struct{}{"command": h.ended, "request": answered} {
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatalf("the %s has not ended", name)
		}
	}
	if !u.deadline.IsZero() {
		t.Errorf("the connection has the deadline %v", u.deadline)
	}
}
