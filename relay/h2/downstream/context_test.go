package downstream

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
)

// TestContextOfAStream: whatever ends the context of a stream, waits for its end return, and so do waits for the end of a context
// derived from it. The last [Pending] that was set is called; the one that it replaced is not.
func TestContextOfAStream(t *testing.T) {
	errWhy := errors.New("why")
	for name, c := range map[string]struct {
		end   func(*peer, *Stream)
		cause error
	}{
		"cancelled":            {func(_ *peer, s *Stream) { s.Cancel(nil) }, context.Canceled},
		"cancelled for that":   {func(_ *peer, s *Stream) { s.Cancel(errWhy); s.Cancel(errors.New("later")) }, errWhy},
		"reset by the client":  {func(p *peer, _ *Stream) { _ = p.framer.WriteRSTStream(1, http2.ErrCodeCancel) }, context.Canceled},
		"the connection ended": {func(p *peer, _ *Stream) { _ = p.conn.Close() }, context.Canceled},
	} {
		for _, early := range []bool{false, true} { // whether anybody waits before
			t.Run(name, func(t *testing.T) {
				var told, forgotten noted
				got := make(chan *Stream)
				served(t, func(s *Stream) {
					got <- s
					<-s.Context().Done()
					child, cancel := context.WithCancel(s.Context())
					defer cancel()
					if s.Context().Err() == nil || !errors.Is(context.Cause(s.Context()), c.cause) || child.Err() == nil || !errors.Is(context.Cause(child), c.cause) {
						t.Errorf("%v, %v; made of it: %v, %v", s.Context().Err(), context.Cause(s.Context()), child.Err(), context.Cause(child))
					}
				}, func(p *peer) {
					p.ask(1, true, get()...)
					s := <-got
					if !s.Await(&forgotten) || !s.Await(&told) || s.Context().Err() != nil {
						t.Error("it ended early")
					}
					before := context.Background()
					if early {
						var cancel context.CancelFunc
						before, cancel = context.WithCancel(s.Context())
						defer cancel()
					}
					c.end(p, s)
					synctest.Wait()
					if early && !errors.Is(context.Cause(before), c.cause) {
						t.Errorf("made of it before: %v", context.Cause(before))
					}
					after, cancel := context.WithCancel(s.Context())
					defer cancel()
					if after.Err() == nil || told.Load() == 0 || forgotten.Load() != 0 || s.Await(nil) || !s.Cancelled() {
						t.Errorf("%v; told %d times, and %d times what was noted before", after.Err(), told.Load(), forgotten.Load())
					}
				})
			})
		}
	}
}

// TestNothingIsToldThatIsNotNoted: a Pending that was removed is not called at a later end, even if the context has ended before:
// it may already serve another stream.
func TestNothingIsToldThatIsNotNoted(t *testing.T) {
	served(t, func(s *Stream) {
		var told noted
		s.Await(&told)
		s.Cancel(nil)
		if s.Await(nil) || told.Load() != 1 {
			t.Errorf("told %d times", told.Load())
		}
		s.Cancel(nil)
		s.Reset(http2.ErrCodeCancel)
		if told.Load() != 1 {
			t.Errorf("told %d times, of which once when it waited", told.Load())
		}
	}, func(p *peer) {
		p.ask(1, true, get()...)
		synctest.Wait()
	})
}

// noted is a [Pending] that counts its calls.
type noted struct{ atomic.Int32 }

func (n *noted) Unwatch() bool {
	n.Add(1)
	return false
}
