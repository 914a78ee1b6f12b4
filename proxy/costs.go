package proxy

import (
	"errors"
	"net/http"

	"boxgate/internal/memory"
	"boxgate/proxy/h1"
)

// What work makes the gateway hold, in bytes: the most that a peer can bring about, garbage that was not collected yet left
// out. The budget leaves room for that.
const (
	connCost     = 16 << 10                            // a connection: its goroutines and first, smallest buffers
	tlsCost      = 160 << 10                           // TLS that is terminated: keys, a record each way, the longest handshake message, incomplete
	http2Cost    = 80 << 10                            // an HTTP/2 connection of a client: a frame each way, header tables, goroutines
	headsCost    = 384 << 10                           // a header block that has begun and not ended: decoded, up to h2HeadRead
	refusalCost  = 24 << 10                            // a stream that is answered by the gateway itself
	streamCost   = h2ResponseWindow + 72<<10           // a stream that goes on: what its server may send ahead, buffers, goroutines
	uploadCost   = h2StreamWindow + replayMax + 32<<10 // the body of its request
	upstreamCost = 96 << 10                            // a connection to a server: TLS, its certificates, a record or frame each way
	fieldsFactor = 3                                   // a head as a map of fields, in multiples of its length
)

// errMemory refuses what would make the gateway hold more memory for a box than it may.
var errMemory = errors.New("the box makes the gateway hold as much memory as it may")

// doubled is a claim on which everything weighs twice: what a reader holds of a message may be held once more on its way out.
type doubled struct{ *memory.Claim }

// Grow implements [h1.Memory].
func (d doubled) Grow(n int) bool { return d.Claim.Grow(2 * n) }

// Shrink implements [h1.Memory].
func (d doubled) Shrink(n int) { d.Claim.Shrink(2 * n) }

// lacksMemory reports whether an error says that there was no memory for the box.
func lacksMemory(err error) bool { return errors.Is(err, errMemory) || errors.Is(err, h1.ErrMemory) }

// fieldsSize is about how long fields are, written as HTTP/1.1.
func fieldsSize(h http.Header) (n int) {
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}
