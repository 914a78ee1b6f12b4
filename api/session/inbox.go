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
	maxUnread  = 1 << 20      // per session
	maxUnacked = 1 << 20      // on top of maxUnread, for a client whose input is acknowledged and which must wait for that
	maxInput   = 64 << 20     // for a client without acknowledgements: reading continues so that its signals do not wait behind its input
	maxInputs  = 4 * maxInput // for all such clients together, on top of maxUnread for each
)

// budget is a limit shared by many sessions.
type budget struct {
	limit int64
	used  atomic.Int64
}

// reserve reserves n more, or reports false. A negative n releases.
func (b *budget) reserve(n int64) bool {
	if b.used.Add(n) <= b.limit || n <= 0 {
		return true
	}
	b.used.Add(-n)
	return false
}

// inbox buffers the input of a command until it is read, so that signals need not wait behind it.
type inbox struct {
	acks   bool    // input is acknowledged, and the client sends little beyond that
	shared *budget // budget of all inboxes for input beyond maxUnread

	mu        sync.Mutex
	changed   sync.Cond
	buf       []byte
	reserved  int64 // bytes reserved from the shared budget
	received  int64 // bytes received from the client
	ended     bool  // the client sends no more input
	discarded bool  // the command reads no more input
}

func newInbox(acks bool, shared *budget) *inbox {
	i := &inbox{acks: acks, shared: shared}
	i.changed.L = &i.mu
	return i
}

// add adds input from the client. If the buffer is full, it waits for the command to read or for ctx to end. A client
// whose input is acknowledged gets an error instead, because a blocked add would also hold up its acknowledgements of
// output.
func (i *inbox) add(ctx context.Context, b []byte) error {
	defer i.wakeOnDone(ctx)()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.received += int64(len(b))
	if i.ended || i.discarded {
		i.changed.Broadcast()
		return nil
	}
	i.buf = append(i.buf, b...)
	i.changed.Broadcast()
	if i.acks {
		if len(i.buf) > maxUnread+maxUnacked {
			return problem.Invalid("/data", "is more than %d bytes beyond what was acknowledged; wait for the acknowledgements", maxUnacked)
		}
		return nil
	}
	for !i.reserveLocked() && !i.discarded && ctx.Err() == nil {
		i.changed.Wait()
	}
	return nil
}

// reserveLocked reserves space for the input from the shared budget and reports whether that succeeded.
func (i *inbox) reserveLocked() bool {
	need := max(0, int64(len(i.buf))-maxUnread)
	if need > maxInput || !i.shared.reserve(need-i.reserved) {
		return false
	}
	i.reserved = need
	return true
}

// wakeOnDone wakes all waiters when ctx ends. stop undoes it.
func (i *inbox) wakeOnDone(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.changed.Broadcast()
	})
}

// waitReceived waits until more than known bytes are acknowledged. Input is acknowledged when received, up to maxUnread
// beyond the bytes that the command has read.
func (i *inbox) waitReceived(ctx context.Context, known int64) (int64, error) {
	defer i.wakeOnDone(ctx)()
	i.mu.Lock()
	defer i.mu.Unlock()
	for ctx.Err() == nil {
		if n := i.received - max(0, int64(len(i.buf))-maxUnread); n > known {
			return n, nil
		}
		i.changed.Wait()
	}
	return 0, ctx.Err()
}

// receivedBytes returns the number of bytes received.
func (i *inbox) receivedBytes() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.received
}

// closeWrite marks the end of the input.
func (i *inbox) closeWrite() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.changed.Broadcast()
}

// discard drops the input of a command that has ended.
func (i *inbox) discard() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.discarded = true
	i.replaceLocked(nil)
}

// replaceLocked replaces the buffer by its unread rest and releases the shared budget that this frees.
func (i *inbox) replaceLocked(rest []byte) {
	i.buf = rest
	if need := max(0, int64(len(rest))-maxUnread); need < i.reserved {
		i.shared.reserve(need - i.reserved)
		i.reserved = need
	}
	i.changed.Broadcast()
}

// Read implements [io.Reader] for the command.
func (i *inbox) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.buf) == 0 {
		if i.ended || i.discarded {
			return 0, io.EOF
		}
		i.changed.Wait()
	}
	n := copy(p, i.buf)
	rest := i.buf[n:]
	if len(rest) == 0 {
		rest = nil // free the buffer instead of keeping its capacity
	}
	i.replaceLocked(rest)
	return n, nil
}
