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

// Answer is an answer in the making. Only one of [Budget.Open] holds anything. Safe for concurrent use.
type Answer struct {
	budget *Budget
	box    policy.BoxID
	scope  *quota.Scope // of the request that it answers

	mu      sync.Mutex // guards what follows, and the outputs
	room    int        // taken from the budget
	used    int        // of room
	closed  bool
	outputs []*Output
}

// Take reports whether the answer may hold n bytes more, and counts them if so.
func (a *Answer) Take(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.takeLocked(n)
}

// takeLocked takes from the budget what the answer lacks.
func (a *Answer) takeLocked(n int) bool {
	if a.closed {
		return false
	}
	if more := a.used + n - a.room; more > 0 {
		if !a.budget.take(a.box, more) {
			return false
		}
		if a.scope.Take(quota.Memory, int64(more)) != nil {
			a.budget.release(a.box, more)
			return false
		}
		a.room += more
	}
	a.used += n
	return true
}

// Clear forgets all that the answer holds, for an answer whose command is followed by another.
func (a *Answer) Clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clearLocked(Least)
}

// close gives everything back: nobody waits for the answer any more.
func (a *Answer) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clearLocked(0)
	a.closed = true
}

// clearLocked gives back what is beyond the room to keep.
func (a *Answer) clearLocked(keep int) {
	if a.closed {
		return
	}
	for _, o := range a.outputs {
		o.kept, o.most = nil, 0
	}
	a.budget.release(a.box, a.room-keep)
	a.scope.Release(quota.Memory, int64(a.room-keep))
	a.room, a.used, a.outputs = keep, 0, nil
}

// Output returns a writer that keeps the first bytes of a stream, and then fails with [ErrFull].
// It keeps at most so many, counted as they will be in JSON, and no more than the budget has room for.
func (a *Answer) Output(most int) *Output {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := &Output{answer: a, most: most}
	a.outputs = append(a.outputs, o)
	return o
}

// Output is a part of an answer. See [Answer.Output].
type Output struct {
	answer *Answer
	// Guarded by the answer's mu.
	most int // that may still be kept, as in JSON
	kept []byte
	cut  bool
}

// Write implements [io.Writer]. It fails once it has kept all that it may.
func (o *Output) Write(b []byte) (int, error) {
	a := o.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	n, cost := fitting(b, o.most)
	if !a.takeLocked(cost) { // what it has must do
		n, cost = fitting(b, a.room-a.used)
		a.used += cost
	}
	o.kept, o.most = append(o.kept, b[:n]...), o.most-cost
	if n < len(b) {
		o.cut, o.most = true, 0 // nothing follows a gap
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

// Text returns what was kept as valid UTF-8, for JSON: other bytes become U+FFFD. Call it once, when nothing is written
// any more.
func (o *Output) Text() string {
	o.answer.mu.Lock()
	defer o.answer.mu.Unlock()
	text := strings.ToValidUTF8(string(o.kept), "\uFFFD")
	o.kept = nil
	return text
}

// ReadAll reads r, which is expected to have so many bytes, to its end. It fails with [ErrFull] if there is no room for
// what is expected, or for what turns out to be there.
func (a *Answer) ReadAll(r io.Reader, expected int64) ([]byte, error) {
	data := make([]byte, 0)
	for size := int(expected) + bytes.MinRead; ; size *= 2 {
		if !a.Take(size - cap(data)) {
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
