package strict

import (
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"time"

	"boxgate/api/problem"
	"boxgate/quota"
)

const (
	// bodyTimeout is how long a client may take to send a body.
	bodyTimeout = 30 * time.Second
	// silenceMost is how long a client may send nothing of a body that it has announced, unless that is configured.
	silenceMost = 10 * time.Second
	// roomPatience is how long a request waits, in all, for memory for its body that others of its key, or of all keys, have.
	roomPatience = 2 * time.Second
)

const (
	// freeBytes of each body do not count against the quota of its key: most bodies have less.
	freeBytes = 16 << 10
	// claimBytes is how much of a body is claimed at a time.
	claimBytes = 64 << 10
	// copies is how many bytes are claimed for a byte of a body: it is copied to be checked, and decoded.
	copies = 4
)

// Bodies reads the bodies of requests.
type Bodies struct {
	Most    int64         // the largest body, in bytes
	Silence time.Duration // how long a client may send nothing of a body that it has announced. 0: 10 s
}

// Read reads the JSON body of a request, within the size limit and a deadline.
func (b Bodies) Read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Header.Get("Content-Type") != "" && (err != nil || media != "application/json") {
		return nil, problem.Refuse(http.StatusUnsupportedMediaType, "the body must be JSON; send Content-Type: application/json")
	}
	memory := memoryOf(r)
	data, err := io.ReadAll(b.within(w, r, memory))
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	_, isExceeded := errors.AsType[*quota.Error](err)
	switch {
	case err == nil:
		return data, memory.take(weigh(data))
	case isExceeded:
		return nil, err
	case isTooLarge:
		return nil, problem.Refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, problem.Refuse(http.StatusRequestTimeout, "the body has not come within %v, or nothing of it for %v", bodyTimeout, b.silence())
	}
	return nil, problem.Refuse(http.StatusBadRequest, "the body is incomplete")
}

// valueSize is how much memory a value takes at least when it is decoded, besides its text.
const valueSize = 64

// weigh returns how much memory the values of a JSON text take besides the text: nothing if they are few.
func weigh(data []byte) int64 {
	values, quoted := int64(0), false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '[' || c == '{'):
			values++
		}
	}
	if values *= valueSize; values < freeBytes {
		return 0
	}
	return values
}

// Whole returns the body of a request for a caller that reads all of it into memory: within the size limit, a deadline for all of it
// and one for each part, and the quota of the request's key. What is claimed of the quota is released with the scope of the request.
// An error of the quota is a *[quota.Error].
func (b Bodies) Whole(w http.ResponseWriter, r *http.Request) io.Reader {
	return b.within(w, r, memoryOf(r))
}

func (b Bodies) within(w http.ResponseWriter, r *http.Request, memory *bodyMemory) io.Reader {
	in := &steady{body: http.MaxBytesReader(w, r.Body, b.Most), rc: http.NewResponseController(w), until: time.Now().Add(bodyTimeout), silence: b.silence()}
	return &Claimed{r: in, memory: memory, room: freeBytes}
}

func (b Bodies) silence() time.Duration { return cmp.Or(b.Silence, silenceMost) }

// bodyMemory is the memory of a request for its body, for which it waits if there is none left.
type bodyMemory struct {
	ctx   context.Context
	scope *quota.Scope
	left  time.Duration // how long it may still wait
}

func memoryOf(r *http.Request) *bodyMemory {
	return &bodyMemory{r.Context(), quota.ScopeOf(r.Context()), roomPatience}
}

func (m *bodyMemory) take(n int64) error {
	begun := time.Now()
	err := m.scope.TakeWithin(m.ctx, m.left, quota.Memory, n)
	m.left -= time.Since(begun)
	return err
}

// Claimed reads data that is kept in memory whole. It claims memory as the data arrives, whatever length was announced.
type Claimed struct {
	r      io.Reader
	memory *bodyMemory
	room   int   // left of the claimed or free bytes
	held   int64 // claimed
}

// NewClaimed returns a reader that claims memory of a scope, and fails at once if there is none left.
func NewClaimed(r io.Reader, scope *quota.Scope) *Claimed {
	return &Claimed{r: r, memory: &bodyMemory{context.Background(), scope, 0}, room: freeBytes}
}

// Read implements [io.Reader].
func (c *Claimed) Read(p []byte) (int, error) {
	if c.room == 0 {
		if err := c.memory.take(copies * claimBytes); err != nil {
			return 0, err
		}
		c.room, c.held = claimBytes, c.held+copies*claimBytes
	}
	n, err := c.r.Read(p[:min(len(p), c.room)])
	c.room -= n
	return n, err
}

// Release releases the claimed memory before the scope ends.
func (c *Claimed) Release() {
	c.memory.scope.Release(quota.Memory, c.held)
	c.held = 0
}

// steady reads a body within deadlines.
type steady struct {
	body  io.Reader
	rc    *http.ResponseController
	until time.Time

	silence time.Duration
}

// Read implements [io.Reader].
func (b *steady) Read(p []byte) (int, error) {
	until := time.Now().Add(b.silence)
	if until.After(b.until) {
		until = b.until
	}
	// Where deadlines are not supported (a test recorder), only the other limits apply.
	_ = b.rc.SetReadDeadline(until)
	n, err := b.body.Read(p)
	_ = b.rc.SetReadDeadline(time.Time{})
	return n, err
}

// Decode reads the body of a request into v, which points to a struct or map. Everything that is not exactly as
// declared is refused, and the error lists all problems.
func (b Bodies) Decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := b.Read(w, r)
	if err != nil {
		return err
	}
	scope := quota.ScopeOf(r.Context())
	return unmarshal(data, v, func(n int64) error { return scope.Take(quota.Memory, n) })
}
