package tunnel

import (
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/internal/socket"
)

// Pool runs tunnels and provides their pipes. Safe for concurrent use.
type Pool struct {
	// LostAfter is how long a server may leave sent data unacknowledged. It must not change after the pool is used.
	LostAfter time.Duration

	idle  time.Duration
	log   *zap.Logger
	pipes pipePool

	mu     sync.Mutex
	loops  []*loop // started on demand, at most one for each processor
	next   int     // index of the loop for the next tunnel
	closed bool
}

// NewPool returns a pool whose tunnels are closed after being idle for idle. At most pipes pipes, two descriptors each, are
// in use at a time; further tunnels copy.
func NewPool(idle time.Duration, pipes int, log *zap.Logger) *Pool {
	return &Pool{LostAfter: socket.LostAfter, idle: idle, log: log, pipes: pipePool{max: pipes}}
}

// Pipes returns the number of pipes in use.
func (p *Pool) Pipes() int {
	p.pipes.mu.Lock()
	defer p.pipes.mu.Unlock()
	return p.pipes.lent
}

// Close closes the unused pipes and provides no more. Open tunnels continue by copying.
func (p *Pool) Close() {
	p.pipes.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, l := range p.loops {
		l.retire()
	}
	p.loops = nil
}

// addToLoop adds a tunnel to a loop, which watches it from then on.
func (p *Pool) addToLoop(t *Tunnel) error {
	if err := p.assign(t); err != nil {
		return err
	}
	if t.dial == nil {
		if err := t.loop.watch(t, client); err != nil {
			return err
		}
	}
	return t.loop.watch(t, server)
}

// assign gives a tunnel a slot in the next loop, in turn.
func (p *Pool) assign(t *Tunnel) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := runtime.GOMAXPROCS(0); len(p.loops) < n || p.closed {
		l, err := newLoop()
		if err != nil && len(p.loops) == 0 {
			return err
		}
		if err == nil && p.closed {
			l.add(t)
			l.retire() // ends with this tunnel
			return nil
		}
		if err == nil {
			p.loops = append(p.loops, l)
		}
	}
	p.next = (p.next + 1) % len(p.loops)
	p.loops[p.next].add(t)
	return nil
}
