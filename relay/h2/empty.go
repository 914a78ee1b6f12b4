package h2

import (
	"golang.org/x/net/http2"
	"golang.org/x/time/rate"
)

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
