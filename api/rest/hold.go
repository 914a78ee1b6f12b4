package rest

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/api/problem"
)

// Silence is the default of [Writer.Silence]. Node's fetch gives up after 300 s without a byte, and balancers after 60 s or less.
const Silence = 15 * time.Second

// pulse tracks when a response was last written to. The zero value is ready.
type pulse struct{ at atomic.Int64 }

func (p *pulse) mark() { p.at.Store(time.Now().UnixNano()) }

// left returns how long the response may stay silent, of silence at most, whatever happens to the clock.
func (p *pulse) left(silence time.Duration) time.Duration {
	return min(silence, silence-time.Duration(time.Now().UnixNano()-p.at.Load()))
}

// Alive calls beat each time that w has been silent for its Silence, until beat returns false or the returned function is called. beat
// writes something that the reader of a stream ignores. stop waits for a beat that is running: it must be called before the handler
// returns, and after a write deadline if the client may be stuck. A w that is no [Writer] gets no beats.
func Alive(w http.ResponseWriter, beat func() bool) (stop func()) {
	own, ok := w.(*Writer)
	if !ok || own.Silence <= 0 {
		return func() {}
	}
	own.pulse.mark()
	var mu sync.Mutex
	ended := false
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(own.Silence, func() {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		left := own.pulse.left(own.Silence)
		if left <= 0 {
			if ended = !beat(); ended {
				return
			}
			left = own.Silence
		}
		timer.Reset(left)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		timer.Stop()
	}
}

// Paced writes a stream with pauses, like [SteadyWriter]. In the pauses it sends line feeds: readers of NDJSON skip empty lines, and readers of
// JSON white space, if each write ends at the end of a token. Create it with [NewPaced]. Safe for concurrent use.
type Paced struct {
	mu   sync.Mutex
	w    io.Writer
	rc   *http.ResponseController
	stop func()
}

// NewPaced begins to keep the connection of w alive, until [Paced.Close].
func NewPaced(w http.ResponseWriter) *Paced {
	p := &Paced{w: SteadyWriter(w), rc: http.NewResponseController(w)}
	p.stop = Alive(w, func() bool {
		_, err := p.Write([]byte("\n"))
		return err == nil && p.Flush() == nil
	})
	return p
}

// BeginPaced is [NewPaced] for a response that begins now, with the status of success. Reverse proxies do not buffer it.
func BeginPaced(w http.ResponseWriter, contentType string) *Paced {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return NewPaced(w)
}

// Write implements [io.Writer].
func (p *Paced) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.w.Write(b)
}

// Flush sends buffered output to the client.
func (p *Paced) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rc.Flush()
}

// Close ends the line feeds. It must be called before the handler returns.
func (p *Paced) Close() { p.stop() }

// hold keeps the connection of a JSON response alive while its handler works: after some silence it sends the status of success and the
// fields of the header, then a space from time to time, because JSON may begin with white space. A failure can then no longer have its
// own status: see [Answerer.serveLate].
type hold struct {
	w      *Writer // nil: the response is not held
	status int
	stop   func()
	begun  bool        // the status was sent
	aside  http.Header // set by the handler meanwhile
}

// holds reports whether the response of a route is held. A response with an ETag is not, because that would come too late, nor one in
// which a client cannot tell a response that breaks off from a complete one: over HTTP/1.0, or to HEAD.
func (rt Route) holds(r *http.Request) bool {
	return rt.Response != nil && len(rt.Produces) == 0 && !rt.Versioned && !rt.Public && r.ProtoAtLeast(1, 1) && r.Method != http.MethodHead
}

// newHold begins to hold the response of a route. [hold.end] must be called once the handler has returned.
func newHold(w http.ResponseWriter, r *http.Request, rt Route) *hold {
	h := &hold{status: max(rt.Status, http.StatusOK), stop: func() {}}
	own, ok := w.(*Writer)
	if !ok || !rt.holds(r) {
		return h
	}
	h.w, h.aside = own, http.Header{}
	own.aside = h.aside
	h.stop = Alive(own, h.beat)
	return h
}

// beat sends white space, and before the first one the header.
func (h *hold) beat() bool {
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started && !h.begun {
		return false // the handler writes the response itself
	}
	if !h.begun && w.Unread != nil && w.Unread() {
		return true // the client is still sending, and the server would stop reading
	}
	if !h.begun {
		h.begun, w.started = true, true
		w.ResponseWriter.Header().Set("Content-Type", "application/json")
		w.ResponseWriter.Header().Set("X-Accel-Buffering", "no")
		w.ResponseWriter.WriteHeader(h.status)
	}
	w.pulse.mark()
	rc := http.NewResponseController(w.ResponseWriter)
	_ = rc.SetWriteDeadline(time.Now().Add(idleTime))
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }()
	_, err := w.ResponseWriter.Write([]byte(" "))
	return err == nil && rc.Flush() == nil
}

// end ends the hold and reports whether the status was sent. If it was not, the response gets the fields that the handler has set.
func (h *hold) end() bool {
	h.stop()
	if h.w == nil || h.w.aside == nil {
		return h.begun
	}
	h.w.aside = nil
	if !h.begun {
		for name, values := range h.aside {
			h.w.Header()[name] = values
		}
	}
	return h.begun
}

// lateFailure is the body of a failure after the status was sent.
type lateFailure struct {
	problem.Body
	Status     int `json:"status"`
	RetryAfter int `json:"retry_after,omitempty"` // seconds, in place of the field Retry-After
}

// serveLate ends a response whose status was sent while the handler worked. If the route's body can describe a failure, it does. Otherwise
// the error is written, and then the connection breaks off in the middle of the body, which no client takes for a success.
func (a Answerer) serveLate(w http.ResponseWriter, r *http.Request, rt Route, rep Reply, err error) {
	status := max(rt.Status, http.StatusOK)
	if err == nil && rep.Written {
		err = errors.New("the handler has written a response that was held")
	}
	if err == nil {
		if err = record(w, status, rep.Change); err != nil {
			err = recordFailed(err)
		}
	} else if rt.Late != nil {
		if body := rt.Late(err); body != nil {
			_, _, _ = a.failure(w, r, err)
			rep, err = Reply{Body: body}, nil
		}
	}
	var data []byte
	if err == nil {
		data, err = encode(rep.Body)
	}
	if err == nil {
		_, _ = SteadyWriter(w).Write(data)
		return
	}
	if status, body, ok := a.failure(w, r, err); ok {
		if a.Broken != nil {
			a.Broken(r, body.Error)
		}
		data, _ = encode(lateFailure{body, status, retryAfter(err)})
		_, _ = SteadyWriter(w).Write(data)
		_ = http.NewResponseController(w).Flush()
	}
	panic(http.ErrAbortHandler)
}
