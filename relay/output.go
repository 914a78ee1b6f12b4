package relay

import "boxgate/internal/buffers"

// Output is pending output, to either side, in a pooled buffer. The zero value is empty and ready to use.
type Output struct{ Buf []byte }

// Take returns the buffer, emptied. Callers store the result of appending to it in Buf.
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
