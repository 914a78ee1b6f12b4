package upstream

import (
	"runtime"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/relay/h2"
)

const (
	outRoom   = 16 << 10 // bytes of output beyond which requests and their content wait
	answerMax = 1000     // pending answers to frames of the server; beyond it, a server that does not read is given up
)

// output collects frames for the writer. The zero value is empty.
type output struct {
	buf   []byte // borrowed while there is output
	taken uint64 // number of times that the writer took it

	begun   bool // a header block was sent
	answers int  // number of answers to the server's frames in it

	complete bool // it was delayed until the end of a batch: no more is expected soon
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

// take returns the output. The caller gives it to buffers.ReturnOut.
func (o *output) take() []byte {
	b := o.buf
	o.buf, o.answers, o.complete = nil, 0, false
	o.taken++
	return b
}

// mark is the position of a DATA frame in the output, valid until the writer takes the output. The zero value is none.
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

// end sets END_STREAM on the stream's last DATA frame, or appends an empty one with it.
func (o *output) end(stream uint32, last mark) {
	if last.at == 0 || last.taken != o.taken {
		last = o.data(stream, nil)
	}
	o.buf[last.at-1+4] |= byte(http2.FlagDataEndStream)
}

// head appends a header block. Fields outside the static table are sent as never indexed.
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

// flushLocked signals output to the writer.
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
		if !c.outputComplete() {
			runtime.Gosched() // lets others append to the same write
		}
		for {
			b, over := c.takeOutput()
			if len(b) == 0 {
				if over {
					return
				}
				break
			}
			if over { // the deadline of failLocked is for a write in progress
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

// outputComplete reports whether the output need not wait for more.
func (c *Conn) outputComplete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.complete || c.out.full()
}

// takeOutput returns the output, and whether the connection has ended.
func (c *Conn) takeOutput() ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.out.take()
	c.crowd.resume()
	return b, c.err != nil
}

const (
	smallPiece = 2 << 10
	largePiece = 16 << 10
)

var (
	smallPieces = buffers.NewPool(smallPiece)
	largePieces = buffers.NewPool(largePiece)
)

// content is the unread part of a response. It uses at most twice its size in memory, plus one piece. The zero value is
// empty.
type content struct {
	pieces []piece
	one    [1]piece
	size   int
}

// piece contains the bytes from read to end of a buffer.
type piece struct {
	buf       *[]byte
	read, end int
}

// add appends a copy of p.
func (b *content) add(p []byte) {
	b.size += len(p)
	for len(p) > 0 {
		if len(b.pieces) == 0 || b.pieces[len(b.pieces)-1].room() == 0 {
			pool := smallPieces
			if len(p) > smallPiece || b.size > smallPiece {
				pool = largePieces
			}
			if b.pieces == nil {
				b.pieces = b.one[:0]
			}
			b.pieces = append(b.pieces, piece{buf: pool.Get()})
		}
		last := &b.pieces[len(b.pieces)-1]
		n := copy((*last.buf)[last.end:], p)
		last.end += n
		p = p[n:]
	}
}

func (p *piece) room() int { return len(*p.buf) - p.end }

func (p *piece) free() {
	if len(*p.buf) == smallPiece {
		smallPieces.Put(p.buf)
		return
	}
	largePieces.Put(p.buf)
}

// take moves content to p.
func (b *content) take(p []byte) (n int) {
	for len(p) > n && len(b.pieces) > 0 {
		first := &b.pieces[0]
		m := copy(p[n:], (*first.buf)[first.read:first.end])
		n += m
		if first.read += m; first.read == first.end {
			first.free()
			b.pieces = b.pieces[1:]
		}
	}
	if b.size -= n; b.size == 0 {
		b.pieces = nil
	}
	return n
}

// skip drops n bytes of the first piece.
func (b *content) skip(n int) {
	first := &b.pieces[0]
	if first.read += n; first.read == first.end {
		first.free()
		b.pieces = b.pieces[1:]
	}
	if b.size -= n; b.size == 0 {
		b.pieces = nil
	}
}

// drop drops the content and returns its size.
func (b *content) drop() int {
	for i := range b.pieces {
		b.pieces[i].free()
	}
	n := b.size
	*b = content{}
	return n
}
