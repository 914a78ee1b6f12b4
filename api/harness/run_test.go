package harness

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/history"
	"boxgate/policy"
)

// hostile is a box with programs defined by the test.
type hostile struct {
	harness func(ctx context.Context, out io.Writer) error
	rm      func(ctx context.Context)
	hosted  api.Hosted
	end     chan struct{} // closed to end programs that still run
}

// Configure implements [Settings].
func (h *hostile) Configure(_ context.Context, _ policy.BoxID, change func(*api.Configuration) error) (api.Box, error) {
	c := api.Configuration{Hosted: h.hosted}
	err := change(&c)
	h.hosted = c.Hosted
	return api.Box{}, err
}

// runUntilKilled is a program that runs until it is killed.
func (h *hostile) runUntilKilled(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-h.end:
	}
	return ctx.Err()
}

func (h *hostile) Exec(ctx context.Context, _ policy.BoxID, req api.ExecRequest, out, _ io.Writer) (api.ExecResult, error) {
	switch req.Command[0] {
	case "sh":
		_, _ = io.WriteString(out, "/tmp/prompt-files-1")
		return api.ExecResult{}, nil
	case "rm":
		h.rm(ctx)
		return api.ExecResult{}, ctx.Err()
	}
	err := h.harness(ctx, out)
	return api.ExecResult{CPU: time.Second}, err
}

// listener records the events of a run. If stuck is set, it blocks until it is hurried.
type listener struct {
	mu     sync.Mutex
	events []string
	stuck  chan struct{}
}

func (l *listener) event(name string, _ []byte) {
	if l.stuck != nil {
		<-l.stuck
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, name)
}

func (l *listener) cutShort() {
	if l.stuck != nil {
		close(l.stuck)
	}
}

// runHarness runs a harness in a box and returns the result. If cancelled is not 0, it cancels the run after that time.
func runHarness(t *testing.T, h *hostile, l *listener, files bool, cancelled time.Duration) (string, history.RunDetail, error) {
	t.Helper()
	h.end = make(chan struct{})
	e := &Endpoints{Runner: Runner{Commands: h, Settings: h, History: history.New(nil)}}
	j := &job{box: api.Box{ID: "box1", Hosted: api.Hosted{CustomRunner: &api.CustomRunner{Command: "harness"}}}, request: api.ExecRequest{Env: map[string]string{}}}
	if files {
		j.body.Files = []fileBody{{Data: "eA=="}}
	}
	ran := make(chan *history.Run, 1)
	done := e.start(access.WithCredential(t.Context(), func() bool { return true }), j, l, func(r *history.Run) { ran <- r })
	if run := <-ran; cancelled > 0 {
		time.Sleep(cancelled)
		e.History.Cancel("box1", run.ID())
	}
	end, inTime := result{}, true
	select {
	case end = <-done:
	case <-time.After(time.Hour):
		t.Error("the run does not end")
		inTime = false
	}
	if close(h.end); !inTime {
		l.cutShort()
		end = <-done
	}
	view, _ := e.History.Find("box1", end.run.ID())
	return strings.Join(l.events, " "), view, end.err
}

const doneEvent = "event: done\ndata: {\"output\":\"fine\"}\n\n"

// A harness that has reported the end of its run can neither prolong the run nor turn it into a failure.
func TestHarnessThatGoesOnAfterDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		h := &hostile{}
		h.harness = func(ctx context.Context, out io.Writer) error {
			_, _ = io.WriteString(out, doneEvent)
			return h.runUntilKilled(ctx)
		}
		events, view, err := runHarness(t, h, &listener{}, false, 0)
		if err != nil || view.Status != "completed" || view.Output != "fine" || events != "done stats" || time.Since(began) > time.Minute {
			t.Errorf("%q %s %q after %v: %v", events, view.Status, view.Output, time.Since(began), err)
		}
	})
}

// A harness with endless output is killed, whatever it writes.
func TestHarnessThatWritesWithoutEnd(t *testing.T) {
	t.Parallel()
	for name, chunk := range map[string]string{
		"noise":  strings.Repeat(strings.Repeat("x", 1<<15)+"\n", 32),
		"events": "event: text\ndata: {\"text\":\"" + strings.Repeat("x", 1<<18) + "\"}\n\n",
	} {
		h := &hostile{harness: func(ctx context.Context, out io.Writer) error {
			for range 2 * maxWritten / len(chunk) {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				_, _ = io.WriteString(out, chunk)
			}
			return nil
		}}
		if _, view, err := runHarness(t, h, &listener{}, false, 0); err == nil || view.Status != "failed" || !strings.Contains(err.Error(), "wrote more than") {
			t.Errorf("%s: %s, %v", name, view.Status, err)
		}
	}
}

// The program that removes the files of a prompt belongs to the box and cannot prolong the run. After a run that was cut
// short, no program is started in the box, which may have been paused.
func TestFilesAreRemovedInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		removals := 0
		h := &hostile{harness: func(_ context.Context, out io.Writer) error { _, err := io.WriteString(out, doneEvent); return err }}
		h.rm = func(ctx context.Context) { removals++; _ = h.runUntilKilled(ctx) }
		if _, view, err := runHarness(t, h, &listener{}, true, 0); err != nil || view.Status != "completed" || removals != 1 {
			t.Errorf("%s after %d removals: %v", view.Status, removals, err)
		}
		h.harness = func(ctx context.Context, _ io.Writer) error { return h.runUntilKilled(ctx) }
		if _, view, err := runHarness(t, h, &listener{}, true, time.Second); !errors.Is(err, api.ErrConflict) || view.Status != "cancelled" || removals != 1 {
			t.Errorf("%s after %d removals: %v", view.Status, removals, err)
		}
	})
}

// A cancelled run ends even if its client does not read.
func TestCancelledRunDoesNotWaitForItsClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		h.harness = func(ctx context.Context, out io.Writer) error {
			_, _ = io.WriteString(out, "event: text\ndata: {}\n\n") // waits for the client
			return h.runUntilKilled(ctx)
		}
		if _, view, err := runHarness(t, h, &listener{stuck: make(chan struct{})}, false, time.Second); view.Status != "cancelled" {
			t.Errorf("%s, %v", view.Status, err)
		}
	})
}

// After a done event, the client receives no error event.
func TestNoErrorAfterDone(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	s := &events{w: rec, rc: http.NewResponseController(rec)}
	for _, name := range []string{"text", "done", "error", "stats"} {
		s.event(name, []byte("{}"))
	}
	var names []string
	for line := range strings.Lines(rec.Body.String()) {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	if !slices.Equal(names, []string{"text", "done", "stats"}) {
		t.Errorf("%v", names)
	}
}

// A panic caused by the harness's output fails the run.
func TestPanicOverWhatAHarnessWrites(t *testing.T) {
	t.Parallel()
	var failed error
	p := &parser{emit: func(string, []byte) { panic("with a secret") }, kill: func(err error) { failed = err }}
	if _, err := io.WriteString(p, "event: text\ndata: {}\n\n"); err != nil || failed == nil || strings.Contains(failed.Error(), "secret") {
		t.Errorf("%v, %v", err, failed)
	}
}

// deadlines is a response that records the connection's last deadline.
type deadlines struct {
	http.ResponseWriter
	last time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error { d.last = t; return nil }

// TestNoDeadlineAfterTheAnswer: a run that is cut short right after its response sets no deadline, which would hit the
// next request on the connection.
func TestNoDeadlineAfterTheAnswer(t *testing.T) {
	t.Parallel()
	d := &deadlines{ResponseWriter: httptest.NewRecorder()}
	s := &events{w: d, rc: http.NewResponseController(d)}
	if s.cutShort(); d.last.IsZero() {
		t.Error("a client that does not read may take for ever")
	}
	s.release()
	if s.cutShort(); !d.last.IsZero() {
		t.Errorf("the next request has until %v", d.last)
	}
}
