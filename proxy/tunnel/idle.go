package tunnel

import (
	"sync"
	"sync/atomic"
	"time"
)

// IdleWatch ends an upgraded connection in which nothing has moved for the idle timeout.
type IdleWatch struct {
	limit time.Duration
	end   func()
	moved []*atomic.Int64 // bytes each way

	mu      sync.Mutex
	timer   *time.Timer
	last    int64
	stopped bool
}

// WatchIdle calls end once the counts have stayed the same for the idle timeout, give or take as much again: it looks once
// in that time. [IdleWatch.Stop] must be called.
func (p *Pool) WatchIdle(end func(), moved ...*atomic.Int64) *IdleWatch {
	w := &IdleWatch{limit: p.idle, end: end, moved: moved}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.limit, w.look)
	return w
}

func (w *IdleWatch) look() {
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
		w.end()
		return
	}
	w.last = sum
	w.timer.Reset(w.limit)
}

// Stop ends the watch. end is not called after it has returned.
func (w *IdleWatch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}
