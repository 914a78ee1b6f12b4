package upstream

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/internal/h2"
)

const (
	outRoom   = 16 << 10 // output beyond which requests and their content wait
	answerMax = 1000     // frames in the output that a server has asked for; one that asks for more and does not read is given up
)

// output gathers frames until the writer takes them. The zero value is empty.
type output struct {
	buf   []byte // borrowed while there is output
	taken uint64 // how often the writer took it

	answers int // frames in it that the server has asked for
}

// Write appends p: a frame of the framer.
func (o *output) Write(p []byte) (int, error) {
	o.grow()
	o.buf = append(o.buf, p...)
	return len(p), nil
}

func (o *output) text(s string) {
	o.grow()
	o.buf = append(o.buf, s...)
}

func (o *output) grow() {
	if o.buf == nil {
		o.buf = buffers.BorrowOut()
	}
}

func (o *output) full() bool { return len(o.buf) >= outRoom }

// take returns the output, to be given back by buffers.ReturnOut.
func (o *output) take() []byte {
	b := o.buf
	o.buf, o.answers = nil, 0
	o.taken++
	return b
}

// mark is the place of a DATA frame in the output, until the writer has taken it. The zero value is no place.
type mark struct {
	at    int
	taken uint64
}

// data appends a DATA frame of at most FrameMax bytes.
func (o *output) data(stream uint32, content []byte) mark {
	o.grow()
	m := mark{len(o.buf) + 1, o.taken}
	n := len(content)
	o.buf = append(o.buf, byte(n>>16), byte(n>>8), byte(n), byte(http2.FrameData), 0)
	o.buf = binary.BigEndian.AppendUint32(o.buf, stream)
	o.buf = append(o.buf, content...)
	return m
}

// end makes the last DATA frame of a stream end it, or appends one that does.
func (o *output) end(stream uint32, last mark) {
	if last.at == 0 || last.taken != o.taken {
		last = o.data(stream, nil)
	}
	o.buf[last.at-1+4] |= byte(http2.FlagDataEndStream)
}

// head appends a header block as HEADERS and CONTINUATION.
func (o *output) head(f *http2.Framer, stream uint32, end bool, block []byte) {
	first := block[:min(len(block), h2.FrameMax)]
	block = block[len(first):]
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0})
	for len(block) > 0 {
		next := block[:min(len(block), h2.FrameMax)]
		block = block[len(next):]
		_ = f.WriteContinuation(stream, len(block) == 0, next)
	}
}

// flushLocked tells the writer that there is output.
func (c *Conn) flushLocked() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// write writes the output until the connection ends.
func (c *Conn) write() {
	defer c.hangUp()
	for range c.wake {
		runtime.Gosched() // what others are about to append goes out in the same write
		for {
			b, over := c.takeOutput()
			if len(b) == 0 {
				if over {
					return
				}
				break
			}
			if over { // the time that failLocked set is for a write in progress
				_ = c.conn.SetWriteDeadline(time.Now().Add(goAwayTime))
			}
			_, err := c.conn.Write(b)
			buffers.ReturnOut(b)
			if err != nil {
				c.fail(err)
				return
			}
		}
	}
}

// takeOutput returns what is to be written, and whether the connection has ended.
func (c *Conn) takeOutput() ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.out.take()
	c.crowd.resume()
	return b, c.err != nil
}

// headBlock is an encoded header block.
type headBlock struct {
	enc  *hpack.Encoder
	buf  bytes.Buffer
	size int // as RFC 9113, 6.5.2 counts it
}

// noTable is a change of the size of the compression table to zero (RFC 7541, 6.3).
const noTable = 0x20

// encoders hold encoders without a table, and therefore without a state.
var encoders = sync.Pool{New: func() any {
	b := &headBlock{}
	b.enc = hpack.NewEncoder(&b.buf)
	b.enc.SetMaxDynamicTableSizeLimit(0)
	_ = b.enc.WriteField(hpack.HeaderField{Name: ":method", Value: "GET"}) // takes the change of the table's size
	return b
}}

// encode encodes fields. What is not in the static table is marked as never indexed.
func encode(fields []hpack.HeaderField) *headBlock {
	b, ok := encoders.Get().(*headBlock)
	if !ok {
		panic("upstream: a foreign value in the encoders")
	}
	b.buf.Reset()
	b.buf.WriteByte(noTable)
	b.size = 0
	for _, f := range fields {
		b.size += int(f.Size())
		f.Sensitive = f.Sensitive || !static(f)
		_ = b.enc.WriteField(f) // into a buffer
	}
	return b
}

// bytes returns the block. The first one of a connection tells that no table is used.
func (b *headBlock) bytes(first bool) []byte {
	if first {
		return b.buf.Bytes()
	}
	return b.buf.Bytes()[1:]
}

// blockKeep is the largest buffer of an encoder that is kept.
const blockKeep = 16 << 10

func (b *headBlock) free() {
	if b.buf.Cap() <= blockKeep {
		encoders.Put(b)
	}
}

// static reports whether a pseudo-header is in the static table (RFC 7541, appendix A) with its value, which then is one
// that everybody knows.
func static(f hpack.HeaderField) bool {
	switch f.Name {
	case ":method":
		return f.Value == "GET" || f.Value == "POST"
	case ":scheme":
		return f.Value == "https" || f.Value == "http"
	case ":path":
		return f.Value == "/" || f.Value == "/index.html"
	}
	return false
}
