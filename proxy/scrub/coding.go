package scrub

import (
	"bufio"
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
