package downstream

import (
	"context"
	"time"
)

// streamContext is a stream as a context. Most requests never wait on their context, so a context of the standard library is
// made only when one is needed.
type streamContext Stream

// Context ends when the client has reset the stream, the connection has ended, the handler has returned, or with
// [Stream.Cancel].
func (s *Stream) Context() context.Context { return (*streamContext)(s) }

// Deadline implements [context.Context].
func (x *streamContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements [context.Context].
func (x *streamContext) Done() <-chan struct{} { return x.made().Done() }

// Value implements [context.Context]. The standard library calls it to find its own context.
func (x *streamContext) Value(key any) any { return x.made().Value(key) }

// Err implements [context.Context].
func (x *streamContext) Err() error {
	if x.cancelled.Load() {
		return context.Canceled
	}
	return x.c.ctx.Err()
}

// made returns the stream's context of the standard library.
func (x *streamContext) made() context.Context {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	if x.ctx == nil {
		x.ctx, x.cancel = context.WithCancelCause(x.c.ctx)
		if x.cancelled.Load() {
			x.cancel(x.cause)
		}
	}
	return x.ctx
}

// Cancel ends the stream's context with a cause, as [context.Cause] returns it. A nil cause means [context.Canceled]. If the
// context has ended before, its cause does not change.
func (s *Stream) Cancel(why error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.cancelLocked(why)
}

// Cancelled reports whether the stream's context has ended.
func (s *Stream) Cancelled() bool { return s.cancelled.Load() }

func (s *Stream) cancelLocked(why error) {
	if !s.cancelled.Load() {
		s.cause = why
		s.cancelled.Store(true)
	}
	if s.cancel != nil {
		s.cancel(s.cause)
	}
	if s.pending != nil && s.pending.Unwatch() {
		s.resumeLocked()
	}
}
