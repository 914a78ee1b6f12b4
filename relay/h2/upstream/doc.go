// Package upstream is the client side of an HTTP/2 connection (RFC 9113): the gateway as the client of an origin
// server.
//
// A [Conn] has two goroutines. One reads frames and never writes: it appends its frames, such as acknowledgements, to the
// output. The other writes the output in batches. Users of the connection append to the output as well, and can let the
// reader continue a stream (Watcher). Only the writer ever waits for a peer that does not read. The memory that a server
// can occupy is limited: the windows of its streams, one header block, and a batch of output.
//
// Header fields are never added to the compression table: fields outside the static table are sent as never-indexed
// literals (RFC 7541, 7.1.3), so that no intermediary puts a secret where others can probe for it.
package upstream
