package scrub

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// Codings lists the supported content codings, as named in Accept-Encoding.
const Codings = "gzip, deflate, br, zstd"

// maxCodings is the maximum number of stacked codings that are decoded: each has its own window.
const maxCodings = 2

// ErrCoding is returned for a body that cannot be decoded for scrubbing.
var ErrCoding = errors.New("the response has a content coding that cannot be decoded")

// ParseCodings parses Content-Encoding and returns the codings in the order they were applied, without
// "identity". The error is [ErrCoding].
func ParseCodings(contentEncoding string) ([]string, error) {
	var codings []string
	for name := range strings.SplitSeq(contentEncoding, ",") {
		name = strings.ToLower(strings.Trim(name, " \t"))
		switch {
		case name == "" || name == "identity":
			continue
		case !isCoding(name) || len(codings) == maxCodings:
			return nil, ErrCoding
		}
		codings = append(codings, name)
	}
	return codings, nil
}

func isCoding(name string) bool {
	switch name {
	case "gzip", "x-gzip", "deflate", "br", "zstd":
		return true
	}
	return false
}

// AcceptEncoding removes unsupported codings from an Accept-Encoding. The result is never empty: without the field, or
// with "*", a server may choose any coding.
func AcceptEncoding(value string) string {
	var kept []string
	for element := range strings.SplitSeq(value, ",") {
		element = strings.Trim(element, " \t")
		name, _, _ := strings.Cut(element, ";")
		name = strings.ToLower(strings.TrimRight(name, " \t"))
		if name == "identity" || isCoding(name) {
			kept = append(kept, element)
		}
	}
	if len(kept) == 0 {
		return "identity"
	}
	return strings.Join(kept, ", ")
}

// decode returns a decoder for one coding. It may block until the first bytes arrive. window is called with the difference
// between the largest window and the required one.
func decode(coding string, src io.Reader, window func(smaller int)) (io.Reader, error) {
	switch coding {
	case "gzip", "x-gzip":
		return gzip.NewReader(src)
	case "deflate":
		return inflate(src)
	case "br":
		buffered := bufio.NewReader(src)
		size, err := brotliWindow(buffered)
		if err != nil {
			return nil, err
		}
		window(maxWindow - size)
		return brotli.NewReader(buffered), nil
	case "zstd":
		buffered := bufio.NewReader(src)
		size, err := zstdWindow(buffered)
		if err != nil {
			return nil, err
		}
		window(maxWindow - size)
		return zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(uint64(size)))
	}
	return nil, ErrCoding
}

// whole is a stream that must not be followed by other data.
type whole struct {
	io.Reader
	rest *bufio.Reader
}

// Read returns an error if there are bytes after the end.
func (w whole) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		if _, more := w.rest.ReadByte(); more == nil {
			return n, errors.New("unexpected data after the compressed stream")
		} else if !errors.Is(more, io.EOF) {
			return n, more
		}
	}
	return n, err
}

// inflate decodes "deflate": the zlib format or, as some servers send it, raw deflate.
func inflate(src io.Reader) (io.Reader, error) {
	buffered := bufio.NewReader(src)
	bare, err := isRawDeflate(buffered)
	if err != nil {
		return nil, err
	}
	if bare {
		return whole{flate.NewReader(buffered), buffered}, nil
	}
	z, err := zlib.NewReader(buffered)
	if err != nil {
		return nil, err
	}
	return whole{z, buffered}, nil
}

// isRawDeflate reports whether a deflate stream has no zlib header (RFC 1950, 2.2).
func isRawDeflate(r *bufio.Reader) (bool, error) {
	b, err := r.Peek(2)
	if len(b) < 2 {
		return len(b) == 1, err
	}
	return b[0]&15 != 8 || (int(b[0])<<8|int(b[1]))%31 != 0, nil
}

// encoder encodes one coding.
type encoder interface {
	io.WriteCloser
	Flush() error
	Reset(io.Writer)
}

// encoders are pooled because they are large. They favour speed over size: the compressed data does not leave the host.
var encoders = map[string]*sync.Pool{
	"gzip":    {New: func() any { w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed); return mustEncoder(w, err) }},
	"deflate": {New: func() any { w, err := zlib.NewWriterLevel(nil, zlib.BestSpeed); return mustEncoder(w, err) }},
	"br":      {New: func() any { return brotli.NewWriterOptions(nil, brotli.WriterOptions{Quality: 2, LGWin: 16}) }},
	"zstd": {New: func() any {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithWindowSize(128<<10), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true))
		return mustEncoder(w, err)
	}},
}

func mustEncoder(w encoder, err error) encoder {
	if err != nil {
		panic(fmt.Sprintf("scrub: an encoder refuses its options: %v", err)) // they are constants
	}
	return w
}

// encode returns an encoder from the pool that writes to dst. Call giveBack after closing it or when the stream is aborted.
func encode(coding string, dst io.Writer) (w encoder, giveBack func(), err error) {
	pool := encoders[strings.TrimPrefix(coding, "x-")]
	if pool == nil {
		return nil, nil, ErrCoding
	}
	w, ok := pool.Get().(encoder)
	if !ok {
		panic("scrub: a foreign value among the encoders")
	}
	w.Reset(dst)
	return w, func() { w.Reset(nil); pool.Put(w) }, nil
}

// ErrExpands is returned for a body that exceeds its [Limit] when decoded.
var ErrExpands = errors.New("the body expands too much in its content coding")

// Limit bounds the decoded size of a body: to a fixed number of bytes, plus Times the number of bytes received. The bound
// applies between codings as well: otherwise a few bytes could keep a decoder busy that never returns data.
type Limit struct {
	Between int64 // bytes between two codings
	Plain   int64 // fully decoded bytes
	Times   int64
	Stop    func() error // called before each part is decoded: an error ends the decoding; may be nil
}

// NewDecoder returns a reader of the decoded body. codings are in the order they were applied. The caller must
// have reserved [Memory] for them.
func NewDecoder(codings []string, src io.Reader, limit Limit) (io.Reader, error) {
	return newDecoder(codings, src, limit, func(int) {})
}

// newDecoder is [NewDecoder]; window is called as by decode.
func newDecoder(codings []string, src io.Reader, limit Limit, window func(smaller int)) (io.Reader, error) {
	arrived := &counted{Reader: src}
	in := io.Reader(arrived)
	for i := len(codings) - 1; i >= 0; i-- {
		plain, err := decode(codings[i], in, window)
		if err != nil {
			return nil, err
		}
		b := &bounded{Reader: plain, free: limit.Between, limit: limit, of: arrived}
		if i == 0 {
			b.free = limit.Plain
		}
		in = b
	}
	return in, nil
}

// counted counts the bytes read.
type counted struct {
	io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded is a body without one of its codings.
type bounded struct {
	io.Reader
	free  int64
	limit Limit
	of    *counted // the body as received
	n     int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.limit.Stop != nil {
		if err := b.limit.Stop(); err != nil {
			return 0, err
		}
	}
	n, err := b.Reader.Read(p)
	if b.n += int64(n); b.n > b.free+b.limit.Times*b.of.n {
		return 0, ErrExpands
	}
	return n, err
}

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

// ErrBody is returned for a body that is not valid in its codings.
var ErrBody = errors.New("the body is not valid in its content coding")

// Decoded returns a decoded body. fits is false if it is longer than most bytes.
func Decoded(codings []string, body []byte, most int, limit Limit) (plain []byte, fits bool, err error) {
	in, err := NewDecoder(codings, bytes.NewReader(body), limit)
	if err == nil {
		plain, err = io.ReadAll(io.LimitReader(in, int64(most)+1))
	}
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrBody, err)
	}
	return plain, len(plain) <= most, nil
}

// Encoded returns a body encoded with codings, in their order.
func Encoded(codings []string, plain []byte) ([]byte, error) {
	for _, coding := range codings {
		var out bytes.Buffer
		w, giveBack, err := encode(coding, &out)
		if err != nil {
			return nil, err
		}
		_, err = w.Write(plain)
		err = errors.Join(err, w.Close())
		giveBack()
		if err != nil {
			return nil, err
		}
		plain = out.Bytes()
	}
	return plain, nil
}

// IsTwoDeflates reports whether a body with the coding deflate can be decoded both as zlib and as raw deflate. Servers support
// either form, and would read different content.
func IsTwoDeflates(body []byte, most int) bool {
	if raw, err := isRawDeflate(bufio.NewReader(bytes.NewReader(body))); raw || err != nil {
		return false
	}
	_, err := io.Copy(io.Discard, io.LimitReader(flate.NewReader(bytes.NewReader(body)), int64(most)+1))
	return err == nil
}
