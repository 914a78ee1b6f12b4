// Package capture bounds the memory for output of boxes that the API buffers. A box chooses how much it prints, and many
// of its commands may print at the same time. Therefore all buffered responses, of all endpoints, share one [Budget].
package capture

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/quota"
)

// Least is the minimum size of every answer, whatever is left of the budget after it was opened.
const Least = 16 << 10

// Budget bounds the memory of all answers under construction together, in bytes as in JSON. Create it with [New]; the
// zero value allows no answer. Safe for concurrent use.
//
// A box may not hold more than what remains for the others: half of the budget if it is the only one, and 1/(n+1) each if
// n boxes take as much as they can. So another box always gets its share, however much the others print.
type Budget struct {
	total int

	mu    sync.Mutex
	used  int                  // guarded by mu
	boxes map[policy.BoxID]int // bytes held by each box; guarded by mu
}

// New returns a budget of that many bytes.
func New(total int) *Budget { return &Budget{total: total, boxes: map[policy.BoxID]int{}} }

// Most returns the maximum that one box can hold.
func (b *Budget) Most() int { return b.total/2 - Least }

// InUse returns the number of bytes in use.
func (b *Budget) InUse() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// reserve reserves n bytes for a box and reports whether that succeeded.
func (b *Budget) reserve(box policy.BoxID, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if mine, left := b.boxes[box]+n, b.total-b.used-n; left < mine {
		return false
	}
	b.used += n
	b.boxes[box] += n
	return true
}

func (b *Budget) release(box policy.BoxID, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.boxes[box] -= n; b.boxes[box] == 0 {
		delete(b.boxes, box)
	}
}

// Open reserves [Least] bytes for an answer about a box. All its memory is released when ctx ends; for the context of a
// request, that is after the response was written. Open fails if there is no space, before any work for the answer was
// done.
func (b *Budget) Open(ctx context.Context, box policy.BoxID) (*Answer, error) {
	if !b.reserve(box, Least) {
		return nil, ErrFull
	}
	scope := quota.ScopeOf(ctx)
	if err := scope.Acquire(quota.Memory, Least); err != nil {
		b.release(box, Least)
		return nil, err
	}
	a := &Answer{budget: b, box: box, scope: scope, reserved: Least}
	context.AfterFunc(ctx, a.close)
	return a, nil
}

// ErrFull is returned if the budget has no space for an answer.
var ErrFull = &api.Error{Kind: api.ErrLimit, Message: "too much output is on its way to other callers; call again later, or use a call that streams (exec-stream, files/download)"}

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

// CutNote ends truncated output: the SDK has no field for it.
const CutNote = "\n[boxgate: the output was cut off here, because it is too large for one answer; use a stream, or write it to a file]\n"

// Text returns the kept bytes as valid UTF-8 for JSON; other bytes become U+FFFD. Truncated text
// ends with [CutNote]. Call it once, after the last Write.
func (o *Output) Text() string {
	o.answer.mu.Lock()
	defer o.answer.mu.Unlock()
	text := strings.ToValidUTF8(string(o.data), "\uFFFD")
	if o.data = nil; o.cut {
		text += CutNote
	}
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

// Cost returns the approximate number of bytes of a text in JSON.
func Cost(text string) int {
	cost := 0
	for i := range len(text) {
		cost += costOf(text[i])
	}
	return cost
}

// fitting returns how many of the bytes fit into room bytes of JSON, and how many bytes of JSON they take.
func fitting(b []byte, room int) (n, cost int) {
	for _, c := range b {
		each := costOf(c)
		if cost+each > room {
			break
		}
		n, cost = n+1, cost+each
	}
	return n, cost
}

// costOf returns the number of bytes that a byte takes in JSON.
func costOf(c byte) int {
	switch {
	case c == '\n', c == '\t', c == '\r', c == '"', c == '\\':
		return len(`\n`)
	case c < ' ', c == '<', c == '>', c == '&':
		return len(`\u0000`)
	}
	return 1
}
