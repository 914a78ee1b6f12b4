package ingress

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
)

// arrivalTime is how long a stop waits for the first request of a connection, counted from its accept: a visitor who found the
// gateway listening is answered.
const arrivalTime = time.Second

// held is an open connection of a listener.
type held struct {
	own      *socket.Owned // ended by release
	freeSlot func()        // returns its slot to the listener; called once, by release
	busy     atomic.Bool   // a request is in progress; always set for HTTP/2 and raw TCP
	network  netip.Prefix  // the connection is counted for it; guarded by the listener's mu
	box      string        // the box of the URL named in TLS, likewise; "": unknown
	since    time.Time     // when it was accepted
	leaves   bool          // giveWayLocked has ended the connection; guarded by the listener's mu
	only     string        // the only host that TLS may name; "": any

	asked atomic.Bool   // a request has begun, or the connection has ended
	first chan struct{} // closed when asked is set
	until time.Time     // when a stop no longer waits for first
}

// begin notes that a request has begun. A stop lets it finish.
func (h *held) begin() {
	h.busy.Store(true)
	h.arrive()
}

// arrive notes that a request has begun, or that the connection ended without one.
func (h *held) arrive() {
	if !h.asked.Load() && h.asked.CompareAndSwap(false, true) {
		close(h.first)
	}
}

// await waits for the first request until h.until or the end of ctx.
func (h *held) await(ctx context.Context) {
	late := time.NewTimer(time.Until(h.until))
	defer late.Stop()
	select {
	case <-h.first:
	case <-late.C:
	case <-ctx.Done():
	}
}

// drained returns a context that ends after stop, once the first request has arrived or its time is over. release must be
// called to free the context.
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

// await waits for the first request of each connection, or until its time is over. Call it when the listener no longer
// accepts.
func (l *listener) await(ctx context.Context) {
	for _, h := range l.silent() {
		h.await(ctx)
	}
}

// silent returns the connections without a first request.
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
