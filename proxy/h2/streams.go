package h2

import (
	"encoding/binary"
	"sync"

	"golang.org/x/net/http2"
)

// streamTracker tracks which streams of an HTTP/2 connection reached the handler. The library silently refuses some
// requests on its own: those with malformed pseudo-headers, names or values, those too large to be read, and those
// beyond the limit of streams. They are recognized by a response or reset on a stream that no handler has, or by the
// end of the connection. Safe for concurrent use.
type streamTracker struct {
	refused func(why string) // called for each; must not block

	mu      sync.Mutex
	streams map[uint32]struct{} // that the library has not ended
}

// begin notes that the handler has a stream, or that its refusal was already recorded.
func (g *streamTracker) begin(stream uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streams == nil {
		g.streams = map[uint32]struct{}{}
	}
	g.streams[stream] = struct{}{}
}

// over notes that the client has ended a stream: the library writes nothing more for it.
func (g *streamTracker) over(stream uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.streams, stream)
}

// wrote is called for each frame that the library writes.
func (g *streamTracker) wrote(head [FrameHead]byte, payload []byte) {
	stream := binary.BigEndian.Uint32(head[5:]) & (1<<31 - 1)
	switch http2.FrameType(head[3]) {
	case http2.FrameGoAway:
		if code, ok := codeAt(payload, 4); ok && code != http2.ErrCodeNo {
			g.refused("the connection is ended with " + code.String())
		}
	case http2.FrameRSTStream:
		code, ok := codeAt(payload, 0)
		late := code == http2.ErrCodeStreamClosed || code == http2.ErrCodeNo // the answer was complete before the request
		if !g.end(stream) && ok && !late {
			g.refused("the stream is reset with " + code.String())
		}
	case http2.FrameHeaders:
		if known := g.answered(stream, http2.Flags(head[4]).Has(http2.FlagHeadersEndStream)); !known {
			g.refused("the request head is too large")
		}
	case http2.FrameData:
		if http2.Flags(head[4]).Has(http2.FlagDataEndStream) {
			g.end(stream)
		}
	}
}

// answered reports whether the handler has the stream; last says that the frame ends the response. For a stream that
// never reached the handler, only the first response frame is reported.
func (g *streamTracker) answered(stream uint32, last bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.streams[stream]
	switch {
	case known && last:
		delete(g.streams, stream)
	case !known && !last:
		if g.streams == nil {
			g.streams = map[uint32]struct{}{}
		}
		g.streams[stream] = struct{}{}
	}
	return known
}

// end removes a stream and reports whether the handler had it.
func (g *streamTracker) end(stream uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.streams[stream]
	delete(g.streams, stream)
	return known
}

func codeAt(payload []byte, at int) (http2.ErrCode, bool) {
	if len(payload) < at+4 {
		return 0, false
	}
	return http2.ErrCode(binary.BigEndian.Uint32(payload[at:])), true
}
