package session

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
)

// TestInputIsBounded: buffered input is bounded per session and for all sessions, and its memory is released.
func TestInputIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := &budget{limit: maxInput + maxInput/2}
		fill := func() (i *inbox, kept func() int, stop func()) {
			i = newInbox(false, shared)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for n := 0; n < 3*maxInput>>20 && ctx.Err() == nil; n++ {
					_ = i.add(ctx, make([]byte, 1<<20))
				}
			}()
			synctest.Wait()
			return i, func() int { i.mu.Lock(); defer i.mu.Unlock(); return len(i.buf) }, func() { cancel(); i.discard(); synctest.Wait() }
		}
		first, kept, stopFirst := fill()
		if n := kept(); n < maxInput || n > maxInput+3<<20 {
			t.Errorf("one session: %d bytes", n)
		}
		_, keptBySecond, stopSecond := fill()
		if n := keptBySecond(); n < maxUnread || n > maxInput/2+3<<20 {
			t.Errorf("with another session: %d bytes", n)
		}
		_, _ = io.ReadFull(first, make([]byte, 8<<20))
		synctest.Wait()
		if n := kept(); n > maxInput+3<<20 {
			t.Errorf("after some was read: %d bytes", n)
		}
		stopFirst()
		stopSecond()
		if n := shared.used.Load(); n != 0 {
			t.Errorf("%d bytes are still taken by sessions that have ended", n)
		}
	})
}
