package buffers

import (
	"sync"
)

const (
	OutSize  = 4 << 10   // of a fresh output buffer: a head and a small body
	OutFlush = 32 << 10  // content gathered in the output buffer before it is written
	outKeep  = 128 << 10 // output buffers up to this size are reused
)

var outBuffers = sync.Pool{New: func() any { b := make([]byte, 0, OutSize); return &b }}

// BorrowOut returns an empty, growable output buffer from the pool. Return it with [ReturnOut].
func BorrowOut() []byte {
	b, ok := outBuffers.Get().(*[]byte)
	if !ok {
		panic("proxy: a foreign value in the output buffers")
	}
	return (*b)[:0]
}

// ReturnOut returns a buffer obtained from [BorrowOut] to the pool; nil and very large buffers are dropped.
func ReturnOut(b []byte) {
	if cap(b) > 0 && cap(b) <= outKeep {
		b = b[:0]
		outBuffers.Put(&b)
	}
}
