package tunnel

import (
	"time"

	"go.uber.org/zap"
)

// Pool carries tunnels and lends them the pipes they splice through. Safe for concurrent use.
type Pool struct {
	idle  time.Duration
	log   *zap.Logger
	pipes pipePool
}

// NewPool returns a pool whose tunnels end after idle without a byte either way, and which lends at most pipes pipes at a
// time, two descriptors each. Bytes of tunnels beyond that are copied.
func NewPool(idle time.Duration, pipes int, log *zap.Logger) *Pool {
	return &Pool{idle: idle, log: log, pipes: pipePool{max: pipes}}
}

// Pipes returns how many pipes hold bytes of tunnels now.
func (p *Pool) Pipes() int {
	p.pipes.mu.Lock()
	defer p.pipes.mu.Unlock()
	return p.pipes.lent
}

// Close closes the pipes that are not in use and lends no more. Open tunnels go on, and copy.
func (p *Pool) Close() { p.pipes.close() }
