// Package h2 contains the parts that both sides of HTTP/2 connections share: header blocks, limits, flow-control windows,
// counters of frames that are cheap to send, and the errors that end streams and connections.
package h2

import (
	"errors"
	"math"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"

	"boxgate/relay/h1"
)

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

const (
	budgetMax  = 10_000 // frames at a time
	budgetRate = 100    // frames a second
)

// Budget limits the frames of a peer that are cheap to send and request no work: SETTINGS, PING, PRIORITY, WINDOW_UPDATE,
// resets, frames of unknown types. Requests and content earn the peer more of them ([Budget.Earn]), and time a few. The zero
// value is full. Not safe for concurrent use.
type Budget struct {
	spent int
	since time.Time // when spent was last reduced for the time
}

// Earn lets the peer send n frames more.
func (b *Budget) Earn(n int) { b.spent = max(0, b.spent-n) }

// Spend counts a frame, and reports whether the peer may send it: else the connection must end with ENHANCE_YOUR_CALM.
func (b *Budget) Spend() bool {
	if b.spent++; b.spent < budgetMax {
		return true
	}
	now := time.Now()
	if b.since.IsZero() {
		b.since = now
		return true
	}
	if earned := int(now.Sub(b.since).Seconds() * budgetRate); earned > 0 {
		b.since = now
		b.Earn(earned)
	}
	return b.spent <= budgetMax
}

const (
	h2Continuations = 32  // CONTINUATION frames per header block; a head of 64 KiB needs three
	h2EmptyRate     = 50  // DATA frames without content a second, sustained
	h2EmptyBurst    = 500 // and in a burst
)

// EmptyFrames counts the frames of one peer that are cheap to send: CONTINUATION frames, which may be empty, and DATA without
// content (CVE-2019-9518, RFC 9113, 10.5) unless it ends its stream. The zero value is ready to use. Not safe for concurrent
// use.
type EmptyFrames struct {
	continuations int           // of the current header block
	data          *rate.Limiter // nil until the first one
}

// Excessive counts a frame with the given bytes of content, and reports whether the peer has exceeded a limit: the
// connection must then end with ENHANCE_YOUR_CALM.
func (e *EmptyFrames) Excessive(h http2.FrameHeader, content int) bool {
	switch {
	case h.Type == http2.FrameHeaders:
		e.continuations = 0
	case h.Type == http2.FrameContinuation:
		e.continuations++
		return e.continuations > h2Continuations
	case h.Type == http2.FrameData && content <= 0 && !h.Flags.Has(http2.FlagDataEndStream):
		if e.data == nil {
			e.data = rate.NewLimiter(h2EmptyRate, h2EmptyBurst)
		}
		return !e.data.Allow()
	}
	return false
}

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
