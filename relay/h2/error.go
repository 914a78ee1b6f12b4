package h2

import (
	"errors"

	"golang.org/x/net/http2"
)

// ErrServer ends an HTTP/2 connection whose server broke the protocol.
var ErrServer = errors.New("the server sent an HTTP/2 frame that is not allowed")

// StreamError is the end of a stream by RST_STREAM. Its text never quotes the peer.
type StreamError struct {
	Code http2.ErrCode
	Peer bool   // the peer reset the stream; else we did
	Why  string // why we did, a constant text; may be empty
}

// Error returns the code and the reason.
func (e *StreamError) Error() string {
	switch {
	case e.Peer:
		return "stream error: " + e.Code.String() + "; received from the peer"
	case e.Why != "":
		return "stream error: " + e.Code.String() + "; " + e.Why
	}
	return "stream error: " + e.Code.String()
}

// GoAwayError is the end of a connection by the peer's GOAWAY.
type GoAwayError struct {
	Code  http2.ErrCode
	Above bool // the stream is above the last one that the peer may have processed
}

// Error returns the code, never the peer's debug data.
func (e *GoAwayError) Error() string {
	return "the server ended the connection by GOAWAY (" + e.Code.String() + ")"
}
