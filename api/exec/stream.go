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

// headerDelay is how long exec-stream waits for output before it sends the response header. It lets a command that cannot
// start be answered with a proper status, and bounds how long a client waits to learn that its command started.
const headerDelay = 200 * time.Millisecond

// writeTimeout is how long the client of a command that was cut short may take to read the remaining output.
const writeTimeout = 10 * time.Second

// streamed handles POST exec-stream and POST code-stream. The SDK's form is the raw output of both streams followed by an
// event "exit" or "error". With Accept: application/x-ndjson, each chunk is a separate frame.
func (e *Endpoints) streamed(read reader) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
		c, err := read(w, r)
		if err != nil {
			return rest.Reply{}, err
		}
		s := newExecStream(w, r)
		late := time.AfterFunc(headerDelay, s.begin)
		defer late.Stop()
		defer rest.Alive(w, s.beat)()
		select {
		case end := <-e.start(r.Context(), c, s.stream("stdout"), s.stream("stderr"), s.cutShort):
			if end.err != nil && !s.begun() {
				return rest.Reply{}, end.err
			}
			s.finish(end.res, end.err)
			s.release()
		case <-r.Context().Done():
			s.abort()
		}
		return rest.Reply{Written: true}, nil
	}
}

// execStream writes the response of one exec-stream.
type execStream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	framed bool
	zip    bool        // the raw form is encoded, so that it can be kept alive
	raw    *stream.Raw // unless framed; guarded by mu

	mu           sync.Mutex // orders the two streams and the delayed header
	started      bool
	closed       bool // the handler has chosen its response, so the delayed header must not be sent
	ended        bool // the result was written
	disconnected bool // the client disconnected or the handler returned: output is discarded and the command continues

	deadlineMu sync.Mutex // guards the write deadline, also while a write holds mu
	returned   bool       // the handler has returned, and the connection may serve another request
}

func newExecStream(w http.ResponseWriter, r *http.Request) *execStream {
	s := &execStream{w: w, rc: http.NewResponseController(w), framed: stream.Accepts(r, stream.NDJSON)}
	s.zip = !s.framed && stream.AcceptsGzip(r)
	s.raw = stream.NewRaw(w, s.zip)
	return s
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
	// Browsers must not parse the raw form as an event stream: it contains output unescaped.
	s.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if s.framed {
		s.w.Header().Set("Content-Type", stream.NDJSON)
	}
	if s.zip {
		s.w.Header().Set("Content-Encoding", "gzip")
	}
	s.w.Header().Set("X-Accel-Buffering", "no") // reverse proxies must not buffer output
	s.w.WriteHeader(http.StatusOK)
	_ = s.rc.Flush()
}

// begun reports whether the header was sent. If not, it prevents that from now on.
func (s *execStream) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.started
}

// errUnread is returned by writes after the client has disconnected.
var errUnread = errors.New("the client has gone")

// stream returns the writer for one of the command's streams. It fails once the client has disconnected.
func (s *execStream) stream(name string) writerFunc {
	return func(b []byte) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.disconnected {
			return 0, errUnread
		}
		s.beginLocked()
		write := func() error { return s.raw.Output(b) }
		if s.disconnected = s.writeLocked(stream.Frame{Stream: name, Data: b}, write) != nil; s.disconnected {
			return 0, errUnread
		}
		return len(b), nil
	}
}

// writeLocked writes a frame, or with raw what takes its place in the raw form.
func (s *execStream) writeLocked(frame stream.Frame, raw func() error) error {
	if !s.framed {
		if err := raw(); err != nil {
			return err
		}
		return s.rc.Flush()
	}
	line, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	if _, err := s.w.Write(append(line, '\n')); err != nil {
		return err
	}
	return s.rc.Flush()
}

// beat keeps the connection of a silent command alive.
func (s *execStream) beat() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.disconnected || s.ended {
		return false
	}
	s.beginLocked()
	var err error
	if s.framed {
		_, err = s.w.Write([]byte("\n")) // readers of NDJSON skip empty lines
	} else {
		err = s.raw.Alive()
	}
	s.disconnected = err != nil || s.rc.Flush() != nil
	return !s.disconnected
}

// abort ends the response while the command continues. A blocked write is aborted.
func (s *execStream) abort() {
	_ = s.rc.SetWriteDeadline(time.Unix(1, 0))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.disconnected = true, true
}

// cutShort limits the time of blocked writes to writeTimeout.
func (s *execStream) cutShort() {
	s.deadlineMu.Lock()
	defer s.deadlineMu.Unlock()
	if !s.returned {
		_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
}

// release undoes cutShort, because the connection may carry further requests.
func (s *execStream) release() {
	s.deadlineMu.Lock()
	defer s.deadlineMu.Unlock()
	s.returned = true
	_ = s.rc.SetWriteDeadline(time.Time{})
}

// finish writes the result of the command, unless the client has disconnected.
func (s *execStream) finish(res api.ExecResult, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.ended = false, true
	s.beginLocked()
	if err != nil {
		_, body := problem.StatusOf(err)
		_ = s.writeLocked(stream.Frame{Error: body.Error}, func() error { return s.raw.End("error", problem.Body{Error: body.Error}) })
		return
	}
	end := func() error { return s.raw.End("exit", exitEvent{res.ExitCode, res.CPU.Nanoseconds()}) }
	_ = s.writeLocked(stream.Frame{ExitCode: &res.ExitCode, CPUNs: res.CPU.Nanoseconds()}, end)
}

// exitEvent is the last event of the raw form.
type exitEvent struct {
	ExitCode int   `json:"exit_code"`
	CPUNs    int64 `json:"cpu_ns"`
}
