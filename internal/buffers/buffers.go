// Package buffers pools byte slices for bodies and tunnels.
package buffers

import "sync"

// Pool is a pool of buffers of one size. Safe for concurrent use.
type Pool struct{ pool sync.Pool }

// NewPool returns a pool of buffers that are size bytes long.
func NewPool(size int) *Pool {
	return &Pool{sync.Pool{New: func() any { b := make([]byte, size); return &b }}}
}

// Get returns a buffer with unspecified contents. Return it with [Pool.Put].
func (p *Pool) Get() *[]byte {
	b, ok := p.pool.Get().(*[]byte)
	if !ok {
		panic("buffers: a foreign value in the pool")
	}
	return b
}

// Put returns a buffer to the pool.
func (p *Pool) Put(b *[]byte) { p.pool.Put(b) }
