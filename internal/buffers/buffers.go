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

const (
	OutSize  = 4 << 10   // initial size of an output buffer: a head and a small body
	OutFlush = 32 << 10  // size at which the output buffer is written
	outKeep  = 128 << 10 // output buffers up to this size are reused
)

var outBuffers = sync.Pool{New: func() any { b := make([]byte, 0, OutSize); return &b }}

// outHeaders pools the slice headers of borrowed buffers, so that returning a buffer does not allocate.
var outHeaders = sync.Pool{New: func() any { return new([]byte) }}

// BorrowOut returns an empty, growable output buffer from the pool. Return it with [ReturnOut].
func BorrowOut() []byte {
	b, ok := outBuffers.Get().(*[]byte)
	if !ok {
		panic("proxy: a foreign value in the output buffers")
	}
	out := (*b)[:0]
	*b = nil
	outHeaders.Put(b)
	return out
}

// ReturnOut returns a buffer obtained from [BorrowOut] to the pool; nil and very large buffers are dropped.
func ReturnOut(b []byte) {
	if cap(b) > 0 && cap(b) <= outKeep {
		h, ok := outHeaders.Get().(*[]byte)
		if !ok {
			panic("buffers: a foreign value among the headers of output buffers")
		}
		*h = b[:0]
		outBuffers.Put(h)
	}
}
