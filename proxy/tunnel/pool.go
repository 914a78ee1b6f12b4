package tunnel

import (
	"time"

	"go.uber.org/zap"
)

// Pool runs tunnels and lends them the pipes they splice through. Safe for concurrent use.
type Pool struct {
	idle  time.Duration
	log   *zap.Logger
	pipes pipePool
}

// NewPool returns a pool whose tunnels end after being idle for idle. At most pipes pipes, two descriptors each, are in
// use at a time; beyond that tunnels copy.
func NewPool(idle time.Duration, pipes int, log *zap.Logger) *Pool {
	return &Pool{idle: idle, log: log, pipes: pipePool{max: pipes}}
}

// Pipes returns how many pipes are in use.
func (p *Pool) Pipes() int {
	p.pipes.mu.Lock()
	defer p.pipes.mu.Unlock()
	return p.pipes.lent
}

// Close closes the unused pipes and lends no more. Open tunnels continue by copying.
func (p *Pool) Close() { p.pipes.close() }
