package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"
)

// headerDelay is how long exec-stream waits for output before it sends the header of its answer. So a command that
// cannot start is answered with a proper status, and a client never waits longer than this to learn that one has
// started.
const headerDelay = 200 * time.Millisecond

// execStream is POST exec-stream. The SDK's form is the raw output of both streams and then an event "exit" or "error".
// With Accept: application/x-ndjson each chunk is a frame of its own.
func (a *API) execStream(w http.ResponseWriter, r *http.Request) (reply, error) {
	c, err := a.readCommand(w, r)
	if err != nil {
		return reply{}, err
	}
	s := &execStream{w: w, rc: http.NewResponseController(w), framed: accepts(r, ndjson)}
	late := time.AfterFunc(headerDelay, s.begin)
	res, err := a.do(r.Context(), c, s.stream("stdout"), s.stream("stderr"))
	late.Stop()
	if err != nil && !s.begun() {
		return reply{}, err
	}
	if errors.Is(err, context.Canceled) {
		return reply{written: true}, nil
	}
	s.finish(res, err)
	return reply{written: true}, nil
}

// execStream writes the answer of one exec-stream.
type execStream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	framed bool

	mu      sync.Mutex // orders the two streams and the delayed header
	started bool
	closed  bool // the handler has decided how to answer: the delayed header must not be sent
}

// execFrame is one frame of the framed form. Data is base64 in JSON, because output is bytes, not text.
type execFrame struct {
	Stream   string `json:"stream,omitempty"`
	Data     []byte `json:"data,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	CPUNs    int64  `json:"cpu_ns,omitempty"`
	Error    string `json:"error,omitempty"`
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
		s.w.Header().Set("Content-Type", ndjson)
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

// stream returns the writer of one of the command's streams.
func (s *execStream) stream(name string) writerFunc {
	return func(b []byte) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.beginLocked()
		if err := s.writeLocked(execFrame{Stream: name, Data: b}, b); err != nil {
			return 0, err
		}
		return len(b), nil
	}
}

func (s *execStream) writeLocked(frame execFrame, raw []byte) error {
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

// finish writes how the command ended. A client that has gone does not get it.
func (s *execStream) finish(res ExecResult, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = false
	s.beginLocked()
	if err != nil {
		_, body := statusOf(err)
		_ = s.writeLocked(execFrame{Error: body.Error}, event("error", errorBody{Error: body.Error}))
		return
	}
	_ = s.writeLocked(execFrame{ExitCode: &res.ExitCode, CPUNs: res.CPU.Nanoseconds()},
		event("exit", exitEvent{res.ExitCode, res.CPU.Nanoseconds()}))
}

// exitEvent ends the raw form.
type exitEvent struct {
	ExitCode int   `json:"exit_code"`
	CPUNs    int64 `json:"cpu_ns"`
}

// event is a server-sent event with JSON data (WHATWG HTML, 9.2).
func event(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte(`{"error":"internal error"}`)
	}
	return []byte("event: " + name + "\ndata: " + string(text) + "\n\n")
}
