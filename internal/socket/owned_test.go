package socket_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"boxgate/internal/socket"
)

// endings counts the calls of End.
type endings struct {
	ended    atomic.Int64
	panicked atomic.Value
}

func (e *endings) end(panicked any) {
	e.ended.Add(1)
	if panicked != nil {
		e.panicked.Store(panicked)
	}
}

// newOwned returns the ownership of a connection, its endings and its count.
func newOwned(t *testing.T, h *socket.Handlers) (*socket.Owned, *endings, *atomic.Int64) {
	t.Helper()
	e, count := &endings{}, &atomic.Int64{}
	o := h.Track(count)
	if o == nil {
		t.Fatal("nothing is owned")
	}
	if o.End = e.end; count.Load() != 1 {
		t.Errorf("%d are counted", count.Load())
	}
	return o, e, count
}

// ended waits for all handlers, and checks that the connection ended once.
func ended(t *testing.T, h *socket.Handlers, e *endings, count *atomic.Int64) {
	t.Helper()
	h.Close()
	h.Wait()
	if n := e.ended.Load(); n != 1 || count.Load() != 0 {
		t.Errorf("ended %d times, %d are counted", n, count.Load())
	}
}

func TestConnectionEndsWithItsLastOwner(t *testing.T) {
	var h socket.Handlers
	o, e, count := newOwned(t, &h)
	open := func() {
		if e.ended.Load() > 0 || count.Load() != 1 {
			t.Error("it has ended before its last owner has")
		}
	}
	tunnel := func() {
		open()
		if !o.Run(open) {
			t.Error("a tunnel cannot end its connection")
		}
	}
	o.Run(func() {
		o.Go(func() {
			open()
			o.Go(func() { o.HandOver(func() { go tunnel() }) })
		})
		open()
		if o.Run(func() { t.Error("a second owner") }) {
			t.Error("two have it at once")
		}
	})
	ended(t, &h, e, count)
	if o.Run(func() { t.Error("an owner after the end") }) {
		t.Error("it is owned after its end")
	}
}

func TestPanicEndsAConnectionOnce(t *testing.T) {
	for what, work := range map[string]func(o *socket.Owned){
		"at once":           func(*socket.Owned) { panic("here") },
		"once passed on":    func(o *socket.Owned) { o.Go(func() { t.Error("the next owner runs") }); panic("here") },
		"while passed on":   func(o *socket.Owned) { o.HandOver(func() { panic("here") }) },
		"in the next owner": func(o *socket.Owned) { o.Go(func() { panic("here") }) },
	} {
		var h socket.Handlers
		o, e, count := newOwned(t, &h)
		o.Run(func() { work(o) })
		if ended(t, &h, e, count); e.panicked.Load() != "here" {
			t.Errorf("%s: it ended with %v", what, e.panicked.Load())
		}
	}
	var h socket.Handlers
	o, e, count := newOwned(t, &h)
	o.Run(func() { o.Go(func() {}); o.Go(func() {}) })
	if ended(t, &h, e, count); e.panicked.Load() == nil {
		t.Error("it was passed on twice")
	}
}

// TestOneOfManyOwners: when several goroutines take a connection at the same time, exactly one gets it, however often
// it is passed on.
func TestOneOfManyOwners(t *testing.T) {
	const many, rounds = 8, 1000
	var h socket.Handlers
	o, e, count := newOwned(t, &h)
	worked := 0 // by owners, one at a time
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			for e.ended.Load() == 0 {
				o.Run(func() {
					if worked++; worked < rounds {
						o.HandOver(func() {}) // to the next caller of Run
					}
				})
				runtime.Gosched()
			}
		})
	}
	all.Wait()
	if ended(t, &h, e, count); worked != rounds {
		t.Errorf("%d had it, want %d", worked, rounds)
	}
}

func TestNoConnectionsAfterClose(t *testing.T) {
	var h socket.Handlers
	var count atomic.Int64
	h.Close()
	if h.Track(&count) != nil || count.Load() != 0 {
		t.Error("one more was counted")
	}
	h.Wait()
}
