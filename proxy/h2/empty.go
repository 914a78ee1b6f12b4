package h2

import (
	"golang.org/x/net/http2"
	"golang.org/x/time/rate"
)

const (
	h2Continuations = 32      // CONTINUATION frames of one header block; a head of 64 KiB needs three
	h2EmptyRate     = 50      // DATA frames a second that carry nothing, sustained
	h2EmptyBurst    = 500     // and at once
	h2PaddingMax    = 1 + 255 // the longest DATA frame that may hold nothing but padding
)

// emptyFrames counts the frames of one peer that cost it next to nothing: CONTINUATION frames, which may be empty and of
// which the library allows any number as long as the header block stays small, and DATA without content (CVE-2019-9518,
// RFC 9113, 10.5). DATA that ends its stream is not one of those. The zero value has seen none. One goroutine uses it.
type emptyFrames struct {
	continuations int           // of the header block under way
	data          *rate.Limiter // nil until there was one
}

// excessive notes a frame with that many bytes of content, and reports whether the peer has sent more of its kind than it
// may: the connection then ends with ENHANCE_YOUR_CALM.
func (e *emptyFrames) excessive(h http2.FrameHeader, content int) bool {
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

// mayBePadding reports whether a frame is DATA of which only the first byte of the payload tells whether there is content.
func mayBePadding(h http2.FrameHeader) bool {
	return h.Type == http2.FrameData && h.Flags.Has(http2.FlagDataPadded) && 0 < h.Length && h.Length <= h2PaddingMax
}
