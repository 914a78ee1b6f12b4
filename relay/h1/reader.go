package h1

import (
	"io"
	"sync"

	"boxgate/internal/memory"
)

// Buffers come in three sizes: small ones for heads, the largest for bulk bodies and for the largest head.
const (
	small  = 4 << 10
	medium = 16 << 10
	large  = MaxHead
)

var pools = [...]sync.Pool{
	{New: func() any { b := make([]byte, small); return &b }},
	{New: func() any { b := make([]byte, medium); return &b }},
	{New: func() any { b := make([]byte, large); return &b }},
}

func poolOf(size int) *sync.Pool {
	switch {
	case size <= small:
		return &pools[0]
	case size <= medium:
		return &pools[1]
	}
	return &pools[2]
}

func borrow(size int) *[]byte {
	b, ok := poolOf(size).Get().(*[]byte)
	if !ok {
		panic("h1: a foreign value in a buffer pool")
	}
	return b
}

func giveBack(b *[]byte) { poolOf(len(*b)).Put(b) }

// Memory limits the buffers of a [Reader]. The Reader calls Grow before it takes a buffer larger than the smallest size.
type Memory interface {
	Grow(n int) bool
	Shrink(n int) // releases what Grow granted
}

// weight returns the bytes to reserve in Memory for a buffer: 0 for the smallest size.
func weight(b *[]byte) int {
	if len(*b) == small {
		return 0
	}
	return len(*b)
}

// Reader buffers the bytes that have arrived on one connection and were not consumed yet. It keeps a pooled buffer only while
// there are such bytes. Not safe for concurrent use.
type Reader struct {
	Source io.Reader
	Memory Memory // nil: no limit

	buf  *[]byte
	r, w int
	one  [1]byte
}

// Bytes returns the unconsumed bytes. They are valid until the next Fill, Wait or Release.
func (r *Reader) Bytes() []byte {
	if r.buf == nil {
		return nil
	}
	return (*r.buf)[r.r:r.w]
}

// Take consumes n bytes.
func (r *Reader) Take(n int) { r.r += n }

// Wait blocks until at least one byte is available. It keeps no buffer while it waits.
func (r *Reader) Wait() error {
	if r.r < r.w {
		return nil
	}
	r.Release()
	n, err := r.Source.Read(r.one[:])
	if n == 0 {
		return orNoProgress(err)
	}
	r.buf = borrow(small)
	(*r.buf)[0] = r.one[0]
	r.w = 1
	return nil
}

// Room returns space for data that the caller receives from the source itself, at least one byte, and reports it by [Reader.Add]. There
// must be no unconsumed bytes.
func (r *Reader) Room() []byte {
	r.room()
	return (*r.buf)[r.w:]
}

// Add appends the first n bytes of the space that [Reader.Room] returned.
func (r *Reader) Add(n int) { r.w += n }

// Fill reads at least one more byte. If the buffer is full it first takes a larger one, up to [MaxHead]. It fails if
// MaxHead bytes are unconsumed, and with [memory.ErrFull] if there is no memory for a larger buffer.
func (r *Reader) Fill() error {
	r.room()
	if r.w == len(*r.buf) {
		if r.w < large {
			return memory.ErrFull
		}
		return bad("the head or trailer section is too large")
	}
	n, err := r.Source.Read((*r.buf)[r.w:])
	r.w += n
	if n > 0 {
		return nil
	}
	return orNoProgress(err)
}

func (r *Reader) room() {
	switch {
	case r.buf == nil:
		r.buf, r.r, r.w = borrow(small), 0, 0
	case r.r == r.w && r.w == len(*r.buf):
		r.grow() // a buffer filled to the brim and emptied: bulk
		r.r, r.w = 0, 0
	case r.r == r.w:
		r.r, r.w = 0, 0
	case r.r > 0 && r.w == len(*r.buf):
		r.w = copy(*r.buf, (*r.buf)[r.r:r.w])
		r.r = 0
	case r.w == len(*r.buf):
		r.grow()
	}
}

// grow takes a larger buffer if memory allows.
func (r *Reader) grow() {
	if len(*r.buf) == large {
		return
	}
	next := borrow(len(*r.buf) + 1)
	if r.Memory != nil && !r.Memory.Grow(weight(next)-weight(r.buf)) {
		giveBack(next)
		return
	}
	r.w = copy(*next, (*r.buf)[r.r:r.w])
	r.r = 0
	giveBack(r.buf)
	r.buf = next
}

// Relax releases an empty buffer larger than the smallest size, so that a connection keeps no large buffer between messages.
func (r *Reader) Relax() {
	if r.r == r.w && r.buf != nil && weight(r.buf) > 0 {
		r.Release()
	}
}

// Release returns the buffer to its pool and discards its contents.
func (r *Reader) Release() {
	if r.buf != nil {
		if r.Memory != nil {
			r.Memory.Shrink(weight(r.buf))
		}
		giveBack(r.buf)
	}
	r.buf, r.r, r.w = nil, 0, 0
}

func orNoProgress(err error) error {
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}
