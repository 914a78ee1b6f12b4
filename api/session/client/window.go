package client

import (
	"context"
	"errors"
	"sync"
)

// windowSize bounds the unacknowledged input. The gateway buffers more than that, so it reads every frame without delay.
const windowSize = 512 << 10

// window counts the input that the gateway has not acknowledged yet.
type window struct {
	mu      sync.Mutex
	sent    int64
	acked   int64
	closed  bool
	changed chan struct{} // closed on each change; nil: no waiters
}

var errSessionEnded = errors.New("the session has ended")

// reserve waits until n more bytes may be sent.
func (w *window) reserve(ctx context.Context, n int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.sent+n-w.acked > windowSize && !w.closed {
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		wait := w.changed
		w.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		w.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if w.closed {
		return errSessionEnded
	}
	w.sent += n
	return nil
}

// acknowledge records that the gateway has accepted the input up to the offset.
func (w *window) acknowledge(upTo int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = max(w.acked, upTo)
	w.wakeLocked()
}

// close wakes all waiters with an error.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.wakeLocked()
}

func (w *window) wakeLocked() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}
