package ingress

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
)

// arrivalTime is how long a visitor may take from connecting to asking if the gateway stops meanwhile: who found it listening is
// answered.
const arrivalTime = time.Second

// held is a connection that a listener holds.
type held struct {
	own      *socket.Owned // ends with release
	freeSlot func()        // returns its slot to the listener; called once, by release
	busy     atomic.Bool   // a request has begun, and has not ended over HTTP/1.x
	network  netip.Prefix  // what it is counted by; guarded by the listener's mu
	box      string        // the one that it leads to, likewise; "": not known
	since    time.Time     // when it was accepted
	leaves   bool          // it gives way, and ends; guarded by the listener's mu
	only     string        // the one host that may be named in TLS; "": any

	asked atomic.Bool   // a request has begun, or the connection has ended
	first chan struct{} // closed then
	until time.Time     // how long a stop waits for that
}

// begin notes that a request has begun, which a stop lets end.
func (h *held) begin() {
	h.busy.Store(true)
	h.arrive()
}

// arrive notes that a request has begun, or that none will.
func (h *held) arrive() {
	if !h.asked.Load() && h.asked.CompareAndSwap(false, true) {
		close(h.first)
	}
}

// await waits for the first request, but not for longer than it may take, nor than ctx.
func (h *held) await(ctx context.Context) {
	late := time.NewTimer(time.Until(h.until))
	defer late.Stop()
	select {
	case <-h.first:
	case <-late.C:
	case <-ctx.Done():
	}
}

// drained returns a context that ends after stop, when the first request has come or has had its time. release must be called
// when it is no longer needed.
func (h *held) drained(stop context.Context) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	forget := context.AfterFunc(stop, func() {
		h.await(ctx)
		cancel()
	})
	return ctx, func() {
		forget()
		cancel()
	}
}

// await waits until those who have connected have asked, or had the time to. Call it when nothing more is accepted.
func (l *listener) await(ctx context.Context) {
	for _, h := range l.silent() {
		h.await(ctx)
	}
}

// silent returns the connections over which no request has begun.
func (l *listener) silent() (list []*held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.conns {
		if !h.asked.Load() {
			list = append(list, h)
		}
	}
	return list
}
