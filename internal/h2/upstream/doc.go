// Package upstream is the client side of an HTTP/2 connection (RFC 9113): the gateway as the client of an origin
// server.
//
// A [Conn] has two goroutines. One reads frames and never writes: it puts what it has to say, such as acknowledgements,
// into the output. The other writes the output, as many frames at a time as there are. Users of the connection append
// to the output as well, and can leave it to the one that reads to go on with a stream (Watcher); nobody but the writer ever waits for a peer that does not read. What a server can make us hold
// is bounded: the windows of its streams, one header block, a batch of output.
//
// Header fields are never put into a compression table: what is not in the static table is sent as a literal that must
// never be indexed (RFC 7541, 7.1.3), so that no intermediary puts a secret where others can probe for it.
package upstream
