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
	// bodyTimeout is the default of [Bodies.Time].
	bodyTimeout = 30 * time.Second
	// defaultSilence is the default of [Bodies.Silence].
	defaultSilence = 10 * time.Second
	// memoryTimeout bounds the total time that a request waits for memory for its body, while its key's quota or the
	// global one is used up.
	memoryTimeout = 2 * time.Second
)

const (
	// freeBytes is the part of each body that does not count against the quota of its key. Most bodies are smaller.
	freeBytes = 16 << 10
	// claimBytes is the increment of claims for the memory of a body.
	claimBytes = 64 << 10
	// copies is the number of bytes claimed per byte of a body, because the body is copied for the check and decoded.
	copies = 4
)

// Bodies reads request bodies.
type Bodies struct {
	Most    int64         // maximum size in bytes
	Silence time.Duration // maximum pause of the client within a body. 0: 10 s
	Time    time.Duration // maximum time for the whole body. 0: 30 s
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
		return data, memory.claim(decodedSize(data))
	case isExceeded:
		return nil, err
	case isTooLarge:
		return nil, problem.Refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, problem.Refuse(http.StatusRequestTimeout, "the body did not arrive within %v, or its client paused for %v", b.time(), b.silence())
	}
	return nil, problem.Refuse(http.StatusBadRequest, "the body is incomplete")
}

// valueSize is the minimum memory of a decoded value in addition to its text.
const valueSize = 64

// decodedSize returns the memory of the decoded values of a JSON text in addition to the text, or 0 if they are few.
func decodedSize(data []byte) int64 {
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

// Whole returns the body of a request for a caller that reads all of it into memory. It enforces the size limit, a
// deadline for the whole body and one for each part, and the quota of the request's key. Claims are released with the
// scope of the request. A quota error is a *[quota.Error].
func (b Bodies) Whole(w http.ResponseWriter, r *http.Request) io.Reader {
	return b.within(w, r, memoryOf(r))
}

func (b Bodies) within(w http.ResponseWriter, r *http.Request, memory *bodyMemory) io.Reader {
	in := &steady{body: http.MaxBytesReader(w, r.Body, b.Most), rc: http.NewResponseController(w), until: time.Now().Add(b.time()), silence: b.silence()}
	return &Claimed{r: in, memory: memory, unused: freeBytes}
}

func (b Bodies) silence() time.Duration { return cmp.Or(b.Silence, defaultSilence) }

func (b Bodies) time() time.Duration { return cmp.Or(b.Time, bodyTimeout) }

// bodyMemory claims memory for the body of a request. It waits if no memory is available.
type bodyMemory struct {
	ctx       context.Context
	scope     *quota.Scope
	remaining time.Duration // remaining time to wait
}

func memoryOf(r *http.Request) *bodyMemory {
	return &bodyMemory{r.Context(), quota.ScopeOf(r.Context()), memoryTimeout}
}

func (m *bodyMemory) claim(n int64) error {
	begun := time.Now()
	err := m.scope.AcquireWithin(m.ctx, m.remaining, quota.Memory, n)
	m.remaining -= time.Since(begun)
	return err
}

// Claimed reads data that is kept in memory as a whole. It claims memory as data arrives, whatever length was announced.
type Claimed struct {
	r       io.Reader
	memory  *bodyMemory
	unused  int   // remaining claimed or free bytes
	claimed int64 // claimed bytes
}

// NewClaimed returns a reader that claims memory from a scope. It fails immediately if no memory is available.
func NewClaimed(r io.Reader, scope *quota.Scope) *Claimed {
	return &Claimed{r: r, memory: &bodyMemory{context.Background(), scope, 0}, unused: freeBytes}
}

// Read implements [io.Reader].
func (c *Claimed) Read(p []byte) (int, error) {
	if c.unused == 0 {
		if err := c.memory.claim(copies * claimBytes); err != nil {
			return 0, err
		}
		c.unused, c.claimed = claimBytes, c.claimed+copies*claimBytes
	}
	n, err := c.r.Read(p[:min(len(p), c.unused)])
	c.unused -= n
	return n, err
}

// Release releases the claimed memory before the scope ends.
func (c *Claimed) Release() {
	c.memory.scope.Release(quota.Memory, c.claimed)
	c.claimed = 0
}

// steady reads a body with deadlines.
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
	// Without support for deadlines (in a test recorder), only the other limits apply.
	_ = b.rc.SetReadDeadline(until)
	n, err := b.body.Read(p)
	_ = b.rc.SetReadDeadline(time.Time{})
	return n, err
}

// Decode decodes the body of a request into v, a pointer to a struct or map. It refuses any deviation from the declared
// type; the error lists all problems.
func (b Bodies) Decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := b.Read(w, r)
	if err != nil {
		return err
	}
	scope := quota.ScopeOf(r.Context())
	return unmarshal(data, v, func(n int64) error { return scope.Acquire(quota.Memory, n) })
}
