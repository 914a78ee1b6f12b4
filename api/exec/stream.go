package exec

import (
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/stream"
)

// headerDelay is how long exec-stream waits for output before it sends the header of its answer. So a command that
// cannot start is answered with a proper status, and a client never waits longer than this to learn that one has
// started.
const headerDelay = 200 * time.Millisecond

// patience is how long the client of a command that was cut short has to read what is left.
const patience = 10 * time.Second

// streamed is POST exec-stream and POST code-stream. The SDK's form is the raw output of both streams and then an event "exit" or
// "error". With Accept: application/x-ndjson each chunk is a frame of its own.
func (e *Endpoints) streamed(read reader) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
		c, err := read(w, r)
		if err != nil {
			return rest.Reply{}, err
		}
		s := &execStream{w: w, rc: http.NewResponseController(w), framed: stream.Accepts(r, stream.NDJSON)}
		late := time.AfterFunc(headerDelay, s.begin)
		defer late.Stop()
		select {
		case end := <-e.start(r.Context(), c, s.stream("stdout"), s.stream("stderr"), s.hurry):
			if end.err != nil && !s.begun() {
				return rest.Reply{}, end.err
			}
			s.finish(end.res, end.err)
			s.leave()
		case <-r.Context().Done():
			s.abandon()
		}
		return rest.Reply{Written: true}, nil
	}
}

// execStream writes the answer of one exec-stream.
type execStream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	framed bool

	mu      sync.Mutex // orders the two streams and the delayed header
	started bool
	closed  bool // the handler has decided how to answer: the delayed header must not be sent
	gone    bool // the client has, or the handler has returned: output is thrown away, and the command goes on

	pace sync.Mutex // guards the deadline of writes, also while a write holds mu
	left bool       // the handler has returned: the connection may be another request's
}

func (s *execStream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginLocked()
}

func (s *execStream) beginLocked() {
	if s.started || s.closed {
		return
	}
	s.started = true
	// The raw form is not an event stream that a browser understands: output is in it unescaped.
	s.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if s.framed {
		s.w.Header().Set("Content-Type", stream.NDJSON)
	}
	s.w.Header().Set("X-Accel-Buffering", "no") // reverse proxies must not buffer output
	s.w.WriteHeader(http.StatusOK)
	_ = s.rc.Flush()
}

// begun reports whether the header was sent, and keeps it from being sent later if it was not.
func (s *execStream) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.started
}

// errUnread is the error of a write after the client has gone.
var errUnread = errors.New("the client has gone")

// stream returns the writer of one of the command's streams. It fails once the client has gone.
func (s *execStream) stream(name string) writerFunc {
	return func(b []byte) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gone {
			return 0, errUnread
		}
		s.beginLocked()
		if s.gone = s.writeLocked(stream.Frame{Stream: name, Data: b}, b) != nil; s.gone {
			return 0, errUnread
		}
		return len(b), nil
	}
}

func (s *execStream) writeLocked(frame stream.Frame, raw []byte) error {
	if s.framed {
		line, err := json.Marshal(frame)
		if err != nil {
			return err
		}
		raw = append(line, '\n')
	}
	if _, err := s.w.Write(raw); err != nil {
		return err
	}
	return s.rc.Flush()
}

// abandon ends the answer; the command goes on. A write that waits for the client is cut short.
func (s *execStream) abandon() {
	_ = s.rc.SetWriteDeadline(time.Unix(1, 0))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.gone = true, true
}

// hurry gives a client that does not read a while, and no more.
func (s *execStream) hurry() {
	s.pace.Lock()
	defer s.pace.Unlock()
	if !s.left {
		_ = s.rc.SetWriteDeadline(time.Now().Add(patience))
	}
}

// leave undoes hurry: the connection may have more requests.
func (s *execStream) leave() {
	s.pace.Lock()
	defer s.pace.Unlock()
	s.left = true
	_ = s.rc.SetWriteDeadline(time.Time{})
}

// finish writes how the command ended. A client that has gone does not get it.
func (s *execStream) finish(res api.ExecResult, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = false
	s.beginLocked()
	if err != nil {
		_, body := problem.StatusOf(err)
		_ = s.writeLocked(stream.Frame{Error: body.Error}, stream.Event("error", problem.Body{Error: body.Error}))
		return
	}
	_ = s.writeLocked(stream.Frame{ExitCode: &res.ExitCode, CPUNs: res.CPU.Nanoseconds()},
		stream.Event("exit", exitEvent{res.ExitCode, res.CPU.Nanoseconds()}))
}

// exitEvent ends the raw form.
type exitEvent struct {
	ExitCode int   `json:"exit_code"`
	CPUNs    int64 `json:"cpu_ns"`
}
