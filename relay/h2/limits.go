package h2

import "boxgate/relay/h1"

const (
	// FrameHead is the length of a frame's header (RFC 9113, 4.1).
	FrameHead = 9
	// FrameMax is the largest frame a peer may send: the smallest limit that RFC 9113, 4.2 allows.
	FrameMax = 16 << 10
	// Streams is how many concurrent requests a client may have on one connection.
	Streams = 100
	// HeadRead is how much of a request's head is read. Requests with larger ones are refused.
	HeadRead = 2 * h1.MaxHead
)
