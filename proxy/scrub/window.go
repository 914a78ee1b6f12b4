package scrub

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxWindow is the largest window that is decoded, in bytes: the limit of RFC 9659 for zstd over HTTP. Brotli allows 16
// MiB, but encoders only use that for bodies larger than this.
const maxWindow = 8 << 20

// ErrWindow is returned for a body that needs a larger window than maxWindow.
var ErrWindow = errors.New("the response is compressed with a window of more than 8 MiB")

// leastZstdWindow is the window for frames after the first that need more than it: servers that flush each message as a
// separate frame start with a small one.
const leastZstdWindow = 2 << 20

// Memory of decoders and encoders in addition to windows, in bytes: measured, and for brotli the largest tables that a
// body can require.
const (
	copyMemory    = 96 << 10
	deflateMemory = 850 << 10
	brotliMemory  = 4 << 20
	zstdMemory    = 2 << 20
)

// Memory returns the most memory needed to decode and encode codings.
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

// brotliWindow returns the window size that a body requires (RFC 7932, 9.1), without consuming it. Bodies that the decoder
// rejects are left to it.
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
	case more == 1: // the decoder rejects large windows (RFC 9841), which are not a content coding
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

// zstdWindow returns the window size that the first frame of a body requires, without consuming it.
func zstdWindow(r *bufio.Reader) (int, error) {
	var h zstd.Header
	for n := 1; ; n = r.Buffered() + 1 { // do not wait for more than the header
		if _, err := r.Peek(n); err != nil && r.Buffered() == 0 {
			return 0, err
		}
		head, _ := r.Peek(r.Buffered()) // cannot fail
		failed := h.Decode(head)
		if errors.Is(failed, io.ErrUnexpectedEOF) && len(head) >= n && len(head) < zstd.HeaderMaxSize {
			continue
		}
		if failed != nil || h.Skippable {
			return maxWindow, nil //nolint:nilerr // left to the decoder
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
