package usage

import (
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
)

const (
	// tlsCost is the most memory that terminated TLS uses, in bytes: keys (16 KiB), a buffer of records, which begins to grow when
	// there is no room for another record (76), and one of a message of the handshake, which doubles (112): a record that was read with
	// other content, one that came by itself, and one more read.
	tlsCost = 208 << 10
	// Within that is a ClientHello of this length, whose buffer has room for twice as much.
	usualHello = 30 << 10
	// tlsIdle is what it uses at least: keys and the state of the connection.
	tlsIdle = 16 << 10
	// What crypto/tls has room for at a time, of what a client has sent: a record, a message of the handshake, and records that were
	// read with another one and may be the beginning of a message. It keeps the room, up to twice as much, while the
	// connection is idle.
	longestMessage = 64 << 10
	mostAhead      = 2 * socket.LongestRecord
)

// Interception is a connection whose TLS is terminated. One goroutine at a time may use it. Those of nil do nothing.
type Interception struct {
	box       *Box
	holds     memory.Claim
	full      int   // what it may use
	handshake int64 // bytes that the client has sent until it was complete
	given     int   // what was given back while it is idle
}

// Intercept counts one more connection whose TLS is terminated and returns nil if the box has as many as all boxes may have, or as
// its own limit is, or if the memory does not allow it; else [Interception.End] must follow. hello is how long the ClientHello is, in
// bytes; 0: it was not read.
func (b *Box) Intercept(all, hello int) *Interception {
	i := &Interception{box: b, full: tlsCost + 2*max(0, hello-usualHello)}
	i.holds.Open(b.Memory, memory.TLS)
	if !i.holds.Grow(i.full) {
		return nil
	}
	if b.Interceptions.Enter(b.Limit(policy.LimitInterceptions, all)) {
		return i
	}
	i.holds.Close()
	return nil
}

// Established notes that the handshake is complete, for which the client has sent so many bytes.
func (i *Interception) Established(sent int64) { i.handshake = sent }

// Rest gives back what a connection does not use while nothing comes from the client, which has sent so many bytes and nothing since the
// last request. [Interception.Wake] must follow before anything is read.
func (i *Interception) Rest(sent int64) {
	if i == nil || i.given > 0 {
		return
	}
	uses := tlsIdle + 2*min(i.handshake, longestMessage) + 2*min(sent, socket.LongestRecord) + 2*min(sent, mostAhead)
	i.given = max(i.full-int(uses), 0)
	i.holds.Shrink(i.given)
}

// Wake reports whether the memory allows that something is read again.
func (i *Interception) Wake() bool {
	if i == nil || i.given == 0 {
		return true
	}
	if !i.holds.Grow(i.given) {
		return false
	}
	i.given = 0
	return true
}

// End removes the connection from the count, and releases its memory.
func (i *Interception) End() {
	if i == nil {
		return
	}
	i.box.Interceptions.Leave()
	i.holds.Close()
}
