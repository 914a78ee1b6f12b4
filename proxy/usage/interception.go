package usage

import (
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
)

const (
	// tlsCost is the most memory that terminated TLS uses, in bytes: keys (16 KiB); a record buffer, which grows when it
	// lacks space for another record (76 KiB); and a handshake message buffer, which doubles (112 KiB). The latter contains
	// a record that was read together with other content, a record that arrived on its own, and one more read.
	tlsCost = 208 << 10
	// It includes a ClientHello of this length, whose buffer may be twice as long.
	usualHello = 30 << 10
	// tlsIdle is the minimum memory of terminated TLS: keys and connection state.
	tlsIdle = 16 << 10
	// Limits of the data received from a client that crypto/tls buffers at a time: a record, a handshake message, and
	// records that were read with another one and may begin a message. It keeps the buffers, of up to twice the size, while
	// the connection is idle.
	longestMessage = 64 << 10
	mostAhead      = 2 * socket.LongestRecord
)

// Interception is a connection whose TLS is terminated. It may be used by one goroutine at a time. Methods of a nil
// Interception have no effect.
type Interception struct {
	box       *Box
	claim     memory.Claim
	reserved  int   // the memory reserved in use
	handshake int64 // bytes received by the end of the handshake
	released  int   // bytes released while idle
}

// Intercept counts one more connection whose TLS is terminated. It returns nil if the box has reached its own limit or,
// without one, the limit all, or if memory is short; otherwise [Interception.End] must follow. hello is the length of the
// ClientHello in bytes, or 0 if it has not been read.
func (b *Box) Intercept(all, hello int) *Interception {
	i := &Interception{box: b, reserved: tlsCost + 2*max(0, hello-usualHello)}
	i.claim.Open(b.Memory, memory.TLS)
	if !i.claim.Grow(i.reserved) {
		return nil
	}
	if b.Interceptions.Enter(b.Limit(policy.LimitInterceptions, all)) {
		return i
	}
	i.claim.Close()
	return nil
}

// Established records the end of the handshake. sent is the number of bytes received from the client so far.
func (i *Interception) Established(sent int64) { i.handshake = sent }

// Rest releases the memory that the connection does not use while it waits for the next request. sent is the total number of
// bytes received from the client, which must have sent nothing since the last request. [Interception.Wake] must follow before
// the next read.
func (i *Interception) Rest(sent int64) {
	if i == nil || i.released > 0 {
		return
	}
	uses := tlsIdle + 2*min(i.handshake, longestMessage) + 2*min(sent, socket.LongestRecord) + 2*min(sent, mostAhead)
	i.released = max(i.reserved-int(uses), 0)
	i.claim.Shrink(i.released)
}

// Wake reserves the memory released by Rest. It returns false if memory is short.
func (i *Interception) Wake() bool {
	if i == nil || i.released == 0 {
		return true
	}
	if !i.claim.Grow(i.released) {
		return false
	}
	i.released = 0
	return true
}

// End removes the connection from the count, and releases its memory.
func (i *Interception) End() {
	if i == nil {
		return
	}
	i.box.Interceptions.Leave()
	i.claim.Close()
}
