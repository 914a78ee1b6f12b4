package proxy

import (
	"net/http"

	"boxgate/proxy/origin"
)

// What work makes the gateway hold, in bytes: the most that a peer can bring about, garbage that was not collected yet left
// out. The budget leaves room for that.
const (
	connCost     = 16 << 10                            // a connection: its goroutines and first, smallest buffers
	http2Cost    = 80 << 10                            // an HTTP/2 connection of a client: a frame each way, header tables, goroutines
	refusalCost  = 24 << 10                            // a stream that is answered by the gateway itself
	streamCost   = origin.ResponseWindow + 72<<10      // a stream that goes on: what its server may send ahead, buffers, goroutines
	uploadCost   = h2StreamWindow + replayMax + 32<<10 // the body of its request
	fieldsFactor = 3                                   // a head as a map of fields, in multiples of its length
)

// fieldsSize is about how long fields are, written as HTTP/1.1.
func fieldsSize(h http.Header) (n int) {
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}
