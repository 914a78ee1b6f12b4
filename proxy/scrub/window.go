package scrub

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxWindow is the largest window that is undone: that which RFC 9659 sets for zstd over HTTP. One of brotli may have 16 MiB;
// encoders take that much only for bodies larger than this.
const maxWindow = 8 << 20

// ErrWindow says that a body asks for a larger window than is undone.
var ErrWindow = errors.New("the response is compressed with a window of more than 8 MiB")

// leastZstdWindow is that of frames behind the first, if they need more than it: servers that flush each message as a frame
// of its own begin with a small one.
const leastZstdWindow = 2 << 20

// Of decoders and encoders, besides windows, in bytes: measured, and for brotli the largest tables that a body can ask for.
const (
	copyMemory    = 96 << 10
	deflateMemory = 850 << 10
	brotliMemory  = 4 << 20
	zstdMemory    = 2 << 20
)

// Memory returns what it takes at most to undo codings and do them again.
func Memory(codings []string) int {
	n := copyMemory
	for _, c := range codings {
		switch strings.TrimPrefix(c, "x-") {
		case "br":
			n += brotliMemory + maxWindow
		case "zstd":
			n += zstdMemory + maxWindow
		default:
			n += deflateMemory
		}
	}
	return n
}

// brotliWindow reads how large a window a body asks for (RFC 7932, 9.1), and leaves it unread. A body that the decoder
// refuses is left to it.
func brotliWindow(r *bufio.Reader) (int, error) {
	head, err := r.Peek(1)
	if err != nil {
		return 0, err
	}
	bits := uint(head[0])
	n, more := bits>>1&7, bits>>4&7
	switch {
	case bits&1 == 0:
		n = 16
	case n != 0:
		n += 17
	case more == 1: // the decoder refuses large windows (RFC 9841), which are no content coding
		n = 10
	case more == 0:
		n = 17
	default:
		n = more + 8
	}
	if 1<<n > maxWindow {
		return 0, ErrWindow
	}
	return 1 << n, nil
}

// zstdWindow reads how large a window the first frame of a body asks for, and leaves it unread.
func zstdWindow(r *bufio.Reader) (int, error) {
	var h zstd.Header
	for n := 1; ; n = r.Buffered() + 1 { // a header that has arrived does not wait for what follows it
		if _, err := r.Peek(n); err != nil && r.Buffered() == 0 {
			return 0, err
		}
		head, _ := r.Peek(r.Buffered()) // which is there
		failed := h.Decode(head)
		if errors.Is(failed, io.ErrUnexpectedEOF) && len(head) >= n && len(head) < zstd.HeaderMaxSize {
			continue
		}
		if failed != nil || h.Skippable {
			return maxWindow, nil //nolint:nilerr // the decoder knows more of it
		}
		break
	}
	size := h.WindowSize
	if h.SingleSegment {
		size = h.FrameContentSize
	}
	if size > maxWindow {
		return 0, ErrWindow
	}
	return max(int(size), leastZstdWindow), nil
}
