package tunnel

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
)

// IdleWatch closes an upgraded connection after the idle timeout.
type IdleWatch struct {
	limit  time.Duration
	onIdle func()
	moved  []*atomic.Int64 // bytes in each direction

	mu      sync.Mutex
	timer   *time.Timer
	last    int64
	stopped bool
}

// WatchIdle calls end when the counts have not changed for between one and two idle timeouts: it checks once per timeout.
// [IdleWatch.Stop] must be called.
func (p *Pool) WatchIdle(end func(), moved ...*atomic.Int64) *IdleWatch {
	w := &IdleWatch{limit: p.idle, onIdle: end, moved: moved}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.limit, w.check)
	return w
}

func (w *IdleWatch) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	sum := int64(0)
	for _, n := range w.moved {
		sum += n.Load()
	}
	if sum == w.last {
		w.onIdle()
		return
	}
	w.last = sum
	w.timer.Reset(w.limit)
}

// WatchLost calls end when the server at the other end of a connection has vanished. stop must be called.
func (p *Pool) WatchLost(c net.Conn, end func()) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case stopped:
		case socket.UnansweredBy(c) >= p.LostAfter:
			end()
		default:
			timer.Reset(p.LostAfter)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(p.LostAfter, look)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// Stop stops the watch. end is not called after Stop has returned.
func (w *IdleWatch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}
