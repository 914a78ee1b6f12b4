package session

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"boxgate/api/problem"
)

// Limits on input buffered for a command that does not read it.
const (
	maxUntaken = 1 << 20      // per session
	maxUnacked = 1 << 20      // on top of maxUntaken, for a client whose input is acknowledged and which must wait for that
	maxInput   = 64 << 20     // for a client without acknowledgements: reading continues so that its signals do not wait behind its input
	maxInputs  = 4 * maxInput // for all such clients together, on top of maxUntaken for each
)

// budget is a limit shared by many sessions.
type budget struct {
	most  int64
	taken atomic.Int64
}

// take reserves n more, or reports false. A negative n releases.
func (b *budget) take(n int64) bool {
	if b.taken.Add(n) <= b.most || n <= 0 {
		return true
	}
	b.taken.Add(-n)
	return false
}

// inbox buffers the input of a command until it is read, so that signals need not wait behind it.
type inbox struct {
	acks   bool    // input is acknowledged, and the client sends little beyond that
	shared *budget // budget of all inboxes for input beyond maxUntaken

	mu     sync.Mutex
	moved  sync.Cond
	buf    []byte
	beyond int64 // bytes reserved from the shared budget
	taken  int64 // bytes received from the client
	ended  bool  // the client sends no more input
	gone   bool  // the command reads no more input
}

func newInbox(acks bool, shared *budget) *inbox {
	i := &inbox{acks: acks, shared: shared}
	i.moved.L = &i.mu
	return i
}

// put adds input from the client. If the buffer is full, it waits for the command to read or for ctx to end. A client
// whose input is acknowledged gets an error instead, because a waiting put would also hold up its acknowledgements of
// output.
func (i *inbox) put(ctx context.Context, b []byte) error {
	defer i.wakeWith(ctx)()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.taken += int64(len(b))
	if i.ended || i.gone {
		i.moved.Broadcast()
		return nil
	}
	i.buf = append(i.buf, b...)
	i.moved.Broadcast()
	if i.acks {
		if len(i.buf) > maxUntaken+maxUnacked {
			return problem.Invalid("/data", "is more than %d bytes beyond what was acknowledged; wait for the acknowledgements", maxUnacked)
		}
		return nil
	}
	for !i.fitsLocked() && !i.gone && ctx.Err() == nil {
		i.moved.Wait()
	}
	return nil
}

// fitsLocked reserves space for the input from the shared budget and reports whether that succeeded.
func (i *inbox) fitsLocked() bool {
	need := max(0, int64(len(i.buf))-maxUntaken)
	if need > maxInput || !i.shared.take(need-i.beyond) {
		return false
	}
	i.beyond = need
	return true
}

// wakeWith wakes all waiters when ctx ends. stop undoes it.
func (i *inbox) wakeWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.moved.Broadcast()
	})
}

// takenAfter waits until more than known bytes are acknowledged. Input is acknowledged when received, up to maxUntaken
// beyond the bytes that the command has read.
func (i *inbox) takenAfter(ctx context.Context, known int64) (int64, error) {
	defer i.wakeWith(ctx)()
	i.mu.Lock()
	defer i.mu.Unlock()
	for ctx.Err() == nil {
		if n := i.taken - max(0, int64(len(i.buf))-maxUntaken); n > known {
			return n, nil
		}
		i.moved.Wait()
	}
	return 0, ctx.Err()
}

// count returns the number of bytes received.
func (i *inbox) count() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.taken
}

// end marks the end of the input.
func (i *inbox) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.moved.Broadcast()
}

// discard drops the input of a command that has ended.
func (i *inbox) discard() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gone = true
	i.keepLocked(nil)
}

// keepLocked replaces the buffer by its unread rest and releases the shared budget that this frees.
func (i *inbox) keepLocked(rest []byte) {
	i.buf = rest
	if need := max(0, int64(len(rest))-maxUntaken); need < i.beyond {
		i.shared.take(need - i.beyond)
		i.beyond = need
	}
	i.moved.Broadcast()
}

// Read implements [io.Reader] for the command.
func (i *inbox) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.buf) == 0 {
		if i.ended || i.gone {
			return 0, io.EOF
		}
		i.moved.Wait()
	}
	n := copy(p, i.buf)
	rest := i.buf[n:]
	if len(rest) == 0 {
		rest = nil // free the buffer instead of keeping its capacity
	}
	i.keepLocked(rest)
	return n, nil
}
