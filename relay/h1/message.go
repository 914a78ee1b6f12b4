package h1

import (
	"bytes"
	"errors"
	"io"
)

// Framing describes how a body is delimited. The zero value is no body.
type Framing struct {
	Chunked    bool
	UntilClose bool  // a response's body that ends with the connection
	Length     int64 // if the body is neither chunked nor ends with the connection
}

// Empty reports whether there is no body.
func (f Framing) Empty() bool { return !f.Chunked && !f.UntilClose && f.Length == 0 }

// head contains what request and response heads share.
type head struct {
	// Minor is the minor version: 0 or 1.
	Minor uint8
	// Fields are the fields in the order received.
	Fields []Field
	// Body is how the body is delimited.
	Body Framing
	// Close is set if the sender closes the connection after this message.
	Close bool
	// Upgrade is the value of the Upgrade field if Connection names it, else nil.
	Upgrade []byte

	// HasLength is set if there is a Content-Length field.
	HasLength bool

	named     [][]byte // fields that Connection names, other than known ones
	keepAlive bool
	upgrading bool
	hasTE     bool
}

func (h *head) reset() {
	*h = head{Fields: h.Fields[:0], named: h.named[:0]}
}

// Named reports whether Connection names the field, which makes it hop-by-hop (RFC 9110, 7.6.1).
func (h *head) Named(name []byte) bool {
	for _, n := range h.named {
		if len(n) == len(name) && bytes.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// version parses "HTTP/1.0" or "HTTP/1.1".
func (h *head) version(b []byte) error {
	switch string(b) {
	case "HTTP/1.1":
		h.Minor = 1
	case "HTTP/1.0":
		h.Minor = 0
	default:
		if len(b) != 8 || string(b[:5]) != "HTTP/" || b[6] != '.' {
			return bad("the start line does not end in a version")
		}
		return &Error{Status: 505, What: "the version is neither HTTP/1.1 nor HTTP/1.0"}
	}
	return nil
}

// field handles the fields that affect framing or the connection.
func (h *head) field(f *Field) error {
	switch f.Kind {
	case ContentLength:
		if h.HasLength {
			return bad("Content-Length is repeated")
		}
		n, err := parseLength(f.Value)
		if err != nil {
			return err
		}
		h.HasLength, h.Body.Length = true, n
	case TransferEncoding:
		if h.hasTE {
			return bad("Transfer-Encoding is repeated")
		}
		if !EqualFold(f.Value, "chunked") {
			return bad("Transfer-Encoding is not exactly chunked")
		}
		h.hasTE = true
	case Connection:
		return options(f.Value, h.option)
	case Upgrade:
		if h.Upgrade != nil {
			return bad("Upgrade is repeated")
		}
		h.Upgrade = f.Value
	case Trailer:
		return options(f.Value, trailerName)
	}
	return nil
}

// trailerName refuses framing fields announced for the trailer section (RFC 9110, 6.5.1).
func trailerName(name []byte) error {
	switch kindOf(name) {
	case ContentLength, TransferEncoding, Trailer, Host:
		return bad("Trailer announces a field that may not stand there")
	}
	return nil
}

func (h *head) option(option []byte) error {
	switch {
	case EqualFold(option, "close"):
		h.Close = true
	case EqualFold(option, "keep-alive"):
		h.keepAlive = true
	case EqualFold(option, "upgrade"):
		h.upgrading = true
	default:
		// A peer that declares framing or routing fields hop-by-hop is up to no good.
		if k := kindOf(option); k == Host || k == ContentLength || k == TransferEncoding {
			return bad("Connection names a field it may not")
		}
		if len(h.named) == MaxFields {
			return bad("too many connection options")
		}
		h.named = append(h.named, option)
	}
	return nil
}

// framing checks combinations of fields.
func (h *head) framing() error {
	if h.hasTE && h.HasLength {
		return bad("both Content-Length and Transfer-Encoding")
	}
	if h.hasTE && h.Minor == 0 {
		return bad("Transfer-Encoding in HTTP/1.0")
	}
	h.Body.Chunked = h.hasTE
	if h.Minor == 0 && !h.keepAlive {
		h.Close = true
	}
	if !h.upgrading {
		h.Upgrade = nil
	}
	return nil
}

// parseLength accepts only digits: no sign, no list, no white space (RFC 9112, 6.3).
func parseLength(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 18 {
		return 0, bad("Content-Length is not a number of at most 18 digits")
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, bad("Content-Length is not a number of at most 18 digits")
		}
		n = n*10 + int64(c-'0')
	}
	return n, nil
}

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

// Error is the reason for refusing a message. Its text never quotes the message.
type Error struct {
	Status int // the response status for it: 400, 414, 417, 431 or 505
	What   string
}

// Error returns the reason.
func (e *Error) Error() string { return e.What }

// ErrShort means that the buffer ends before the part being parsed does: read more and retry.
var ErrShort = errors.New("message is not complete yet")

// TooManyFields is the error text for a message of more than [MaxFields] fields.
const TooManyFields = "it has more than 128 fields"

func bad(what string) error { return &Error{Status: 400, What: what} }

// Limits on one message. They are fixed: legitimate clients stay far below them.
const (
	MaxHead      = 64 << 10 // bytes of a head with its empty line
	MaxFields    = 128      // fields of a head or of a trailer section
	MaxTrailers  = 16 << 10 // bytes of a trailer section
	maxMethod    = 32
	maxChunkLine = 4 << 10 // a response's chunk size line with the extensions that are stripped
)

// NoEOF turns io.EOF inside a message into io.ErrUnexpectedEOF.
func NoEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
