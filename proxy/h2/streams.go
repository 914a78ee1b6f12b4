package h2

import (
	"encoding/binary"
	"sync"

	"golang.org/x/net/http2"
)

// streamTracker knows which streams of an HTTP/2 connection the handler was given. The library refuses some requests by itself,
// without a word: those malformed in their pseudo-headers, names or values, those too large even to be read, those beyond
// the limit of streams. It answers or resets a stream then that nobody was given, or ends the connection; by that they are
// seen. Safe for concurrent use.
type streamTracker struct {
	refused func(why string) // called for each; must not wait

	mu      sync.Mutex
	streams map[uint32]struct{} // that the library has not ended
}

// begin notes that a stream was given to the handler, or that its refusal is told elsewhere.
func (g *streamTracker) begin(stream uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streams == nil {
		g.streams = map[uint32]struct{}{}
	}
	g.streams[stream] = struct{}{}
}

// over notes that the client has ended a stream: the library writes nothing for it any more.
func (g *streamTracker) over(stream uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.streams, stream)
}

// wrote is told of each frame that the library writes.
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

// answered reports whether the handler was given the stream; last: the answer ends with this frame. Of a stream that it was
// not given one answer is enough to know.
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

// end forgets a stream and reports whether the handler was given it.
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
