package relay

import "boxgate/internal/buffers"

// Output is pending output, to either side, in a pooled buffer. The zero value has none.
type Output struct{ Buf []byte }

// Take returns the buffer, emptied. What is appended to it has to be stored in Buf.
func (o *Output) Take() []byte {
	if o.Buf == nil {
		o.Buf = buffers.BorrowOut()
	}
	return o.Buf[:0]
}

// Give returns the buffer to the pool.
func (o *Output) Give() {
	buffers.ReturnOut(o.Buf)
	o.Buf = nil
}
