package session

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"boxgate/api/problem"
)

// How much input is kept for a command that does not read it.
const (
	maxUntaken = 1 << 20      // of each session
	maxUnacked = 1 << 20      // beyond that of a client whose input is acknowledged, and which must wait for it
	maxInput   = 64 << 20     // of a client that is told nothing: it is read further, or its signals would wait behind its input
	maxInputs  = 4 * maxInput // of all such clients together, beyond maxUntaken of each
)

// budget bounds what many may take together.
type budget struct {
	most  int64
	taken atomic.Int64
}

// take takes n more, or nothing. What is given back is taken with a negative n.
func (b *budget) take(n int64) bool {
	if b.taken.Add(n) <= b.most || n <= 0 {
		return true
	}
	b.taken.Add(-n)
	return false
}

// inbox keeps the input of a command until it is read. Signals need not wait behind it.
type inbox struct {
	acks   bool    // the client is told what has been taken, and sends no more than a bit beyond it
	shared *budget // what all keep beyond maxUntaken

	mu     sync.Mutex
	moved  sync.Cond
	buf    []byte
	beyond int64 // how much of the shared budget it has
	taken  int64 // how much has come from the client
	ended  bool  // the client sends no more
	gone   bool  // the command reads no more
}

func newInbox(acks bool, shared *budget) *inbox {
	i := &inbox{acks: acks, shared: shared}
	i.moved.L = &i.mu
	return i
}

// put takes input of the client. When that is more than may be kept, it waits for the command to read, unless ctx ends; a client whose
// input is acknowledged is refused instead, as its acknowledgements of output would wait as well.
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

// fitsLocked takes of the shared budget what the input needs, and reports whether it may be kept.
func (i *inbox) fitsLocked() bool {
	need := max(0, int64(len(i.buf))-maxUntaken)
	if need > maxInput || !i.shared.take(need-i.beyond) {
		return false
	}
	i.beyond = need
	return true
}

// wakeWith wakes those that wait when ctx ends, until stop is called.
func (i *inbox) wakeWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.moved.Broadcast()
	})
}

// takenAfter waits until more input than known is acknowledged: what has come, but no more than maxUntaken beyond what the command has read.
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

// count is how much input has come.
func (i *inbox) count() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.taken
}

// end ends the input after what has come.
func (i *inbox) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.moved.Broadcast()
}

// discard ends it for a command that has ended.
func (i *inbox) discard() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gone = true
	i.keepLocked(nil)
}

// keepLocked keeps the rest of the input, and gives back what that does not need.
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
		rest = nil // what was kept for a while is not kept for ever
	}
	i.keepLocked(rest)
	return n, nil
}
