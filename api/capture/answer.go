package capture

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"

	"boxgate/policy"
	"boxgate/quota"
)

// Answer is the memory of a response under construction. Create it with [Budget.Open]; the zero value can hold no data.
// Safe for concurrent use.
type Answer struct {
	budget *Budget
	box    policy.BoxID
	scope  *quota.Scope // of the request

	mu       sync.Mutex // guards the fields below and the outputs
	reserved int        // reserved from the budget
	used     int        // part of room in use
	closed   bool
	outputs  []*Output
}

// Reserve reserves n more bytes for the answer and reports whether that succeeded.
func (a *Answer) Reserve(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reserveLocked(n)
}

// reserveLocked reserves the missing part from the budget.
func (a *Answer) reserveLocked(n int) bool {
	if a.closed {
		return false
	}
	if more := a.used + n - a.reserved; more > 0 {
		if !a.budget.reserve(a.box, more) {
			return false
		}
		if a.scope.Acquire(quota.Memory, int64(more)) != nil {
			a.budget.release(a.box, more)
			return false
		}
		a.reserved += more
	}
	a.used += n
	return true
}

// Clear discards the contents of the answer, to reuse it for another command.
func (a *Answer) Clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clearLocked(Least)
}

// close releases all memory. The request has ended.
func (a *Answer) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clearLocked(0)
	a.closed = true
}

// clearLocked releases all but keep bytes.
func (a *Answer) clearLocked(keep int) {
	if a.closed {
		return
	}
	for _, o := range a.outputs {
		o.data, o.left = nil, 0
	}
	a.budget.release(a.box, a.reserved-keep)
	a.scope.Release(quota.Memory, int64(a.reserved-keep))
	a.reserved, a.used, a.outputs = keep, 0, nil
}

// Output returns a writer that keeps the first bytes of a stream and then fails with [ErrFull]. It keeps up to most
// bytes, counted as in JSON, and no more than the budget allows.
func (a *Answer) Output(most int) *Output {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := &Output{answer: a, left: most}
	a.outputs = append(a.outputs, o)
	return o
}

// Output is part of an answer. See [Answer.Output].
type Output struct {
	answer *Answer
	// Guarded by the answer's mu.
	left int // remaining bytes, as in JSON
	data []byte
	cut  bool
}

// Write implements [io.Writer]. It fails once the limit is reached.
func (o *Output) Write(b []byte) (int, error) {
	a := o.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	n, cost := fitting(b, o.left)
	if !a.reserveLocked(cost) { // use the rest of the reserved memory
		n, cost = fitting(b, a.reserved-a.used)
		a.used += cost
	}
	o.data, o.left = append(o.data, b[:n]...), o.left-cost
	if n < len(b) {
		o.cut, o.left = true, 0 // no output may follow a gap
		return n, ErrFull
	}
	return len(b), nil
}

// Cut reports whether anything was discarded.
func (o *Output) Cut() bool {
	o.answer.mu.Lock()
	defer o.answer.mu.Unlock()
	return o.cut
}

// Text returns the kept bytes as valid UTF-8 for JSON; other bytes become U+FFFD. Call it once, after the last Write.
func (o *Output) Text() string {
	o.answer.mu.Lock()
	defer o.answer.mu.Unlock()
	text := strings.ToValidUTF8(string(o.data), "\uFFFD")
	o.data = nil
	return text
}

// ReadAll reads r to its end; expected is the expected number of bytes. It fails with [ErrFull] if the budget has no
// space for the expected or the actual number of bytes.
func (a *Answer) ReadAll(r io.Reader, expected int64) ([]byte, error) {
	data := make([]byte, 0)
	for size := int(expected) + bytes.MinRead; ; size *= 2 {
		if !a.Reserve(size - cap(data)) {
			return nil, ErrFull
		}
		data = append(make([]byte, 0, size), data...)
		for len(data) < size {
			n, err := r.Read(data[len(data):size])
			data = data[:len(data)+n]
			if errors.Is(err, io.EOF) {
				return data, nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
}
