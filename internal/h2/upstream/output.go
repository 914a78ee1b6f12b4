package upstream

import (
	"runtime"
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

	begun   bool // a header block was sent
	answers int  // frames in it that the server has asked for
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
	o.buf = h2.AppendFrameHead(o.buf, n, http2.FrameData, 0, stream)
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

// head appends a header block. What is not in the static table is marked as never to be indexed.
func (o *output) head(stream uint32, end bool, fields []hpack.HeaderField) {
	var flags http2.Flags
	if end {
		flags = http2.FlagHeadersEndStream
	}
	o.grow()
	at := len(o.buf)
	o.buf = h2.AppendFrameHead(o.buf, 0, http2.FrameHeaders, flags, stream)
	if !o.begun {
		o.begun, o.buf = true, append(o.buf, h2.NoTable)
	}
	for _, f := range fields {
		f.Sensitive = f.Sensitive || !h2.Static(&f)
		o.buf = h2.AppendField(o.buf, &f)
	}
	o.buf = h2.EndHead(o.buf, at)
}

// headSize returns the size of fields as RFC 9113, 6.5.2 counts it.
func headSize(fields []hpack.HeaderField) (n int) {
	for i := range fields {
		n += int(fields[i].Size())
	}
	return n
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
