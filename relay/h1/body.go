package h1

import (
	"bytes"
	"errors"
)

// Body decodes the body of one message as it arrives. The zero value is no body; [Body.Begin] sets its framing.
type Body struct {
	// Trailers are the trailer fields of a chunked body once Next has reported its end. They point into the buffer.
	Trailers []Field
	// Lenient accepts the mistakes of a lenient [Response] in chunks and trailers. Begin keeps neither it nor Repairs.
	Lenient bool
	Repairs Repairs

	framing Framing
	left    int64 // bytes left of the body, or of the current chunk
	state   chunkState
	strip   bool
	scan    headScan
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkData
	chunkEnd
	trailers
)

// Begin starts a body. Chunk extensions and white space after a chunk size are refused in requests, where they only serve
// to confuse parsers; in responses (strip true) they are dropped.
func (b *Body) Begin(f Framing, strip bool) {
	if cap(b.Trailers) > 2*MaxFields {
		b.Trailers = nil
	}
	*b = Body{Trailers: b.Trailers[:0], framing: f, left: f.Length, strip: strip}
	if f.Chunked {
		b.left = 0
	}
}

// Next decodes buf, the received bytes not consumed yet. It returns the content at its beginning (possibly empty), how
// many bytes of buf were consumed, and whether the body has ended. It consumes as much as it can up to the end of that
// content; if it consumes 0 bytes and the body has not ended, read more. A body that lasts until the close never ends
// here.
func (b *Body) Next(buf []byte) (content []byte, n int, done bool, err error) {
	switch {
	case b.framing.UntilClose:
		return buf, len(buf), false, nil
	case !b.framing.Chunked:
		n = int(min(int64(len(buf)), b.left))
		b.left -= int64(n)
		return buf[:n], n, b.left == 0, nil
	}
	for {
		switch b.state {
		case chunkSize:
			taken, err := b.size(buf[n:])
			if err != nil || taken == 0 {
				return nil, n, false, err
			}
			n += taken
		case chunkData:
			size := int(min(int64(len(buf)-n), b.left))
			b.left -= int64(size)
			if b.left == 0 {
				b.state = chunkEnd
			}
			return buf[n : n+size], n + size, false, nil
		case chunkEnd:
			if b.Lenient && len(buf) > n && buf[n] == '\n' {
				b.Repairs |= BareNewline
				n++
				b.state = chunkSize
				continue
			}
			if len(buf)-n < 2 {
				return nil, n, false, nil
			}
			if buf[n] != '\r' || buf[n+1] != '\n' {
				return nil, n, false, bad("a chunk that does not end with CRLF")
			}
			n += 2
			b.state = chunkSize
		case trailers:
			taken, err := b.trailers(buf[n:])
			return nil, n + taken, taken > 0 && err == nil, err
		}
	}
}

// size parses one chunk-size line and returns its length, or 0 if it is incomplete.
func (b *Body) size(buf []byte) (int, error) {
	limit := 18 // sixteen digits and CR LF
	if b.strip {
		limit = maxChunkLine
	}
	end := bytes.IndexByte(buf[:min(len(buf), limit)], '\n')
	if end < 0 {
		if len(buf) >= limit {
			return 0, bad("a chunk-size line is too long")
		}
		return 0, nil
	}
	line := buf[:end]
	switch {
	case end > 0 && buf[end-1] == '\r':
		line = buf[:end-1]
	case b.Lenient:
		b.Repairs |= BareNewline
	default:
		return 0, bad("a bare LF after a chunk size")
	}
	if semicolon := bytes.IndexByte(line, ';'); semicolon >= 0 {
		if !b.strip {
			return 0, bad("a chunk extension")
		}
		if !all(line[semicolon:], value) {
			return 0, bad("a control byte in a chunk extension")
		}
		line = line[:semicolon]
	}
	if b.strip {
		line = bytes.TrimRight(line, " \t") // as Tomcat 6 pads them; RFC 9112, 7.1.1 has it before an extension
	}
	size, err := parseChunkSize(line)
	if err != nil {
		return 0, err
	}
	b.left, b.state = size, chunkData
	if size == 0 {
		b.state, b.scan = trailers, headScan{lenient: b.Lenient}
	}
	return end + 1, nil
}

func parseChunkSize(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 15 {
		return 0, bad("a chunk size is not a hexadecimal number of at most 15 digits")
	}
	var n int64
	for _, c := range b {
		d := unhex(c)
		if d < 0 {
			return 0, bad("a chunk size is not a hexadecimal number of at most 15 digits")
		}
		n = n<<4 | int64(d)
	}
	return n, nil
}

// trailers parses the section after the last chunk and returns its length, or 0 if it is incomplete.
func (b *Body) trailers(buf []byte) (int, error) {
	end, err := b.scan.end(buf, MaxTrailers)
	if errors.Is(err, ErrShort) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if b.Lenient {
		lines, err := b.Repairs.unfold(buf[:end])
		if err == nil {
			b.Trailers, err = b.Repairs.parseFields(lines, b.Trailers)
		}
		return end, err
	}
	b.Trailers, err = parseFields(buf[:end-2], b.Trailers)
	return end, err
}

// Chunked reports whether the body is chunked.
func (b *Body) Chunked() bool { return b.framing.Chunked }
