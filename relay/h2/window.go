package h2

import "math"

// FirstWindow is the size of each flow-control window before the first change of it (RFC 9113, 6.9.2).
const FirstWindow = 65535

// SendWindow is a flow-control window for data sent to a peer. Not safe for concurrent use.
type SendWindow struct{ left int64 }

// Left returns how many bytes may be sent. It can be negative after the peer has made its windows smaller.
func (w *SendWindow) Left() int { return int(w.left) }

// Add changes the window and reports whether it stays within the bounds of RFC 9113, 6.9.1.
func (w *SendWindow) Add(n int) bool {
	w.left += int64(n)
	return w.left <= math.MaxInt32
}

// Take uses n bytes of the window.
func (w *SendWindow) Take(n int) { w.left -= int64(n) }

// ReceiveWindow is a flow-control window for data received from a peer. Not safe for concurrent use.
type ReceiveWindow struct {
	left  int // bytes that the peer may still send
	owed  int // bytes consumed and not yet granted again
	batch int // grants of less are withheld
}

// NewReceiveWindow returns a window of a size. Grants are gathered until they amount to batch.
func NewReceiveWindow(size, batch int) ReceiveWindow {
	return ReceiveWindow{left: size, batch: batch}
}

// Take uses n bytes of the window and reports whether the peer was allowed to send them.
func (w *ReceiveWindow) Take(n int) bool {
	w.left -= n
	return w.left >= 0
}

// Return gives back n bytes that were consumed. It returns the increment to announce to the peer now, or 0.
func (w *ReceiveWindow) Return(n int) (increment int) {
	if w.owed += n; w.owed < w.batch {
		return 0
	}
	increment = w.owed
	w.left += increment
	w.owed = 0
	return increment
}
