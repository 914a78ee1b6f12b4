package buffers

import (
	"sync"
)

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
