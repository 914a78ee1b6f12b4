package h2

import (
	"crypto/tls"
	"encoding/binary"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// ServerConn is the client side of an HTTP/2 connection on which header fields are marked as never indexed (RFC 7541,
// 7.1.3), so that no intermediary puts a secret into a compression table that others can probe.
//
// The HTTP/2 library has no API for this. It is configured without a dynamic table, so it writes every field that is
// not in the static table as a "literal without indexing": four zero bits, where "never indexed" has 0001. The
// encodings are otherwise identical, so Write sets one bit in the first byte of each such field.
//
// Frames from the server are checked as well: see [serverFrames].
type ServerConn struct {
	*tls.Conn
	closed func()        // called when the connection has been closed, possibly more than once
	server *serverFrames // incoming frames

	mu sync.Mutex // held during writes; guards the following

	preface int // bytes of the connection preface already written
	header  [9]byte
	have    int // bytes of header
	left    int // remaining bytes of the current frame's payload
	skip    int // of those, bytes at the beginning of a HEADERS payload that are not header fields
	fields  bool
	block   hpackWalk
	out     []byte
}

const prefaceLen = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

const (
	frameHeaders      = 1
	frameContinuation = 9
	flagPadded        = 0x8
	flagPriority      = 0x20
)

func NewServerConn(conn *tls.Conn, closed func()) *ServerConn {
	c := &ServerConn{Conn: conn, closed: closed}
	c.server = newServerFrames(conn, c.goAway)
	return c
}

// Read implements net.Conn.
func (c *ServerConn) Read(p []byte) (int, error) { return c.server.Read(p) }

// Write writes b with the fields marked. Only the goroutine with the library's write lock calls it.
func (c *ServerConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out[:0], b...)
	c.mark(c.out)
	return c.Conn.Write(c.out)
}

// goAwayTime is how long writing a GOAWAY to a server that broke the protocol may take.
const goAwayTime = 100 * time.Millisecond

// goAway sends the server a GOAWAY with the reason, if possible at once: between two frames, and without waiting for a
// blocked write.
func (c *ServerConn) goAway(code http2.ErrCode) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if c.preface < prefaceLen || c.have > 0 || c.left > 0 {
		return
	}
	frame := []byte{0, 0, 8, byte(http2.FrameGoAway), 0, 0, 0, 0, 0, 0, 0, 0, 0}
	_ = c.SetWriteDeadline(time.Now().Add(goAwayTime))
	_, _ = c.Conn.Write(binary.BigEndian.AppendUint32(frame, uint32(code)))
}

// Close closes the connection immediately: a TLS close_notify could block on a peer that does not read.
func (c *ServerConn) Close() error {
	err := c.NetConn().Close()
	c.closed()
	return err
}

func (c *ServerConn) mark(b []byte) {
	if n := min(prefaceLen-c.preface, len(b)); n > 0 {
		c.preface += n
		b = b[n:]
	}
	for len(b) > 0 {
		if c.left == 0 {
			n := copy(c.header[c.have:], b)
			c.have += n
			b = b[n:]
			if c.have == len(c.header) {
				c.begin()
			}
			continue
		}
		n := min(c.left, len(b))
		c.payload(b[:n])
		c.left -= n
		b = b[n:]
	}
}

// begin parses a frame header (RFC 9113, 4.1).
func (c *ServerConn) begin() {
	c.have = 0
	c.left = int(binary.BigEndian.Uint32(c.header[:4]) >> 8)
	if c.server != nil {
		c.server.sent(frameHead(c.header[:]))
	}
	kind, flags := c.header[3], c.header[4]
	c.fields = kind == frameHeaders || kind == frameContinuation
	c.skip = 0
	if kind == frameHeaders {
		c.block = hpackWalk{}
		if flags&flagPriority != 0 {
			c.skip = 5
		}
		// The library never pads; a padded frame is passed unchanged rather than misparsed.
		c.fields = flags&flagPadded == 0
	}
}

func (c *ServerConn) payload(b []byte) {
	if !c.fields {
		return
	}
	n := min(c.skip, len(b))
	c.skip -= n
	c.block.mark(b[n:])
}

// hpackWalk walks a header block (RFC 7541, 6) without a dynamic table, in chunks of any size.
type hpackWalk struct {
	state walkState
	value bool // the current string is the value; else the name, and the value follows
	size  int  // of the current string
	shift uint // of the next byte of an integer
}

type walkState uint8

const (
	walkField    walkState = iota // the first byte of a field
	walkIndex                     // the rest of an index that ends the field
	walkNameIdx                   // the rest of an index of a name; the value follows
	walkLength                    // the first byte of a string's length
	walkLongSize                  // the rest of it
	walkString
)

func (w *hpackWalk) mark(b []byte) {
	for i := 0; i < len(b); i++ {
		switch w.state {
		case walkField:
			b[i] = w.field(b[i])
		case walkIndex, walkNameIdx:
			if b[i]&0x80 != 0 {
				continue
			}
			if w.state == walkIndex {
				w.state = walkField
			} else {
				w.state = walkLength
			}
		case walkLength:
			w.size, w.shift = int(b[i]&0x7f), 0
			if w.state = walkString; w.size == 0x7f {
				w.state = walkLongSize
			} else if w.size == 0 {
				w.endString()
			}
		case walkLongSize:
			w.size += int(b[i]&0x7f) << w.shift
			w.shift += 7
			if b[i]&0x80 == 0 {
				w.state = walkString
			}
		case walkString:
			n := min(w.size, len(b)-i)
			i += n - 1
			if w.size -= n; w.size == 0 {
				w.endString()
			}
		}
	}
}

// field reads the first byte of a field and returns it with the mark.
func (w *hpackWalk) field(b byte) byte {
	switch {
	case b&0x80 != 0: // an index and no more
		if b&0x7f == 0x7f {
			w.state = walkIndex
		}
		return b
	case b&0xe0 == 0x20: // a size of the dynamic table
		if b&0x1f == 0x1f {
			w.state = walkIndex
		}
		return b
	}
	limit := byte(0x0f) // without indexing, or never indexed already
	if b&0x40 != 0 {
		limit = 0x3f // with incremental indexing: not with a table of this size
	} else {
		b |= 0x10
	}
	w.value = b&limit != 0
	w.state = walkLength
	if b&limit == limit {
		w.state = walkNameIdx
	}
	return b
}

func (w *hpackWalk) endString() {
	w.state = walkLength
	if w.value {
		w.state = walkField
	}
	w.value = !w.value
}
