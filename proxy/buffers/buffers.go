// Package buffers lends byte slices for bodies and tunnels.
package buffers

import "sync"

// Pool lends buffers of one size. Safe for concurrent use.
type Pool struct{ pool sync.Pool }

// NewPool returns a pool of buffers that are size bytes long.
func NewPool(size int) *Pool {
	return &Pool{sync.Pool{New: func() any { b := make([]byte, size); return &b }}}
}

// Get lends a buffer, whose bytes may be anything. [Pool.Put] takes it back.
func (p *Pool) Get() *[]byte {
	b, ok := p.pool.Get().(*[]byte)
	if !ok {
		panic("buffers: a foreign value in the pool")
	}
	return b
}

// Put takes a buffer back.
func (p *Pool) Put(b *[]byte) { p.pool.Put(b) }
