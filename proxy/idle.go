package proxy

import (
	"sync"
	"sync/atomic"
	"time"
)

// idleWatch ends an upgraded connection in which nothing has moved for the idle timeout.
type idleWatch struct {
	limit time.Duration
	end   func()
	moved []*atomic.Int64 // bytes each way

	mu      sync.Mutex
	timer   *time.Timer
	last    int64
	stopped bool
}

// watchIdle calls end once the counts have stayed the same for the idle timeout, give or take as much again: it looks once
// in that time. stop must be called.
func (p *Proxy) watchIdle(end func(), moved ...*atomic.Int64) *idleWatch {
	w := &idleWatch{limit: p.cfg.IdleTimeout, end: end, moved: moved}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.limit, w.look)
	return w
}

func (w *idleWatch) look() {
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

func (w *idleWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}
