package downstream

import (
	"encoding/binary"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/relay/h2"
)

const (
	batchMax   = 16 << 10                   // bytes; a batch of this size gets no more DATA and heads
	dataMax    = h2.FrameMax - h2.FrameHead // of a DATA frame: it fills a TLS record
	controlMax = 1000                       // frames in a batch that answer the client's own
)

// output holds the frames that a connection has to send. They gather in a batch while the previous batch is being written.
// The connection's mu guards it.
type output struct {
	c        *conn
	pending  []byte // the batch; nil while empty
	batch    uint64 // its number
	controls int    // frames in it that answer the client's own
	kicked   bool   // the batch must be written
	writing  bool   // there is a goroutine that writes
	owed     bool   // the connection is in an h2.Batch
	complete bool   // the batch is full, or was delayed: no more is expected soon
	wake     sync.Cond
	begun    bool // a header block was sent

	first     int           // the window that a stream begins with
	send      h2.SendWindow // of the connection
	forRoom   []*Stream
	forWindow []*Stream
}

func (o *output) open(c *conn) {
	o.c, o.first = c, h2.FirstWindow
	o.send.Add(h2.FirstWindow)
	o.wake.L = &c.mu
}

// room reports whether a batch may take more DATA and heads.
func (o *output) room() bool { return len(o.pending) < batchMax }

func (o *output) grow() {
	if o.pending == nil {
		o.pending = buffers.BorrowOut()
	}
}

// kick starts writing the batch, if it is not empty.
func (o *output) kick() {
	switch {
	case o.c.ended != nil || len(o.pending) == 0:
		return
	case o.kicked:
		return
	case o.writing:
		o.kicked = true
		o.wake.Signal()
	default:
		o.kicked, o.writing = true, true
		o.c.run.Go(o.write)
	}
}

// owe lets the batch be written at the end of another.
func (o *output) owe(b *h2.Batch) {
	if !o.owed && !o.kicked && len(o.pending) > 0 {
		o.owed = true
		b.Add(o.c)
	}
}

// Flush implements [h2.Flusher].
func (c *conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.owed, c.out.complete = false, true
	c.out.kick()
}

// write writes batches while there are requests in progress or frames to write.
func (o *output) write() {
	defer o.c.contain()
	for {
		due, urgent := o.due()
		if !due {
			return
		}
		if !urgent {
			runtime.Gosched() // let other goroutines append to the same write
		}
		batch := o.take()
		if len(batch) == 0 {
			continue
		}
		_, err := o.c.net.Write(batch)
		buffers.ReturnOut(batch)
		if err != nil {
			o.c.end(errClosed)
		}
	}
}

// due waits for a batch. It reports whether there is one to write, else the goroutine must end, and whether the batch is
// urgent: answers to the client's frames count against controlMax until they are taken, and a complete batch gets no more.
func (o *output) due() (due, urgent bool) {
	c := o.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.ended != nil, len(o.pending) == 0 && len(c.streams) == 0:
			o.writing = false
			return false, false
		case len(o.pending) > 0 && (o.kicked || len(c.streams) == 0):
			return true, o.controls > 0 || o.complete || !o.room()
		}
		o.wake.Wait()
	}
}

// take returns the batch and begins a new one. The batch is empty if the connection has ended since due.
func (o *output) take() []byte {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	batch := o.pending
	o.pending, o.controls, o.kicked, o.complete = nil, 0, false, false
	o.batch++
	o.pass()
	return batch
}

// idle lets the writing goroutine end.
func (o *output) idle() { o.wake.Signal() }

func (o *output) close() {
	o.pending = nil
	o.wake.Signal()
}

// await waits until the stream may be able to send more. In a queue, it waits for room in the batch or for the connection's
// window; without a queue, for the stream's own window.
func (o *output) await(s *Stream, queue *[]*Stream) {
	if queue != nil {
		*queue, s.queued = append(*queue, s), true
	} else {
		o.pass()
	}
	o.kick()
	s.waitWritable()
	if s.queued {
		s.queued = false
		o.forRoom, o.forWindow = without(o.forRoom, s), without(o.forWindow, s)
	}
}

func without(queue []*Stream, s *Stream) []*Stream {
	return slices.DeleteFunc(queue, func(q *Stream) bool { return q == s })
}

// pass wakes the first stream in the queue for room in the batch, if there is room, and in the queue for the connection's window,
// if some is left. A stream calls pass again after it has sent, to wake the next.
func (o *output) pass() {
	if o.room() {
		wakeFirst(&o.forRoom)
	}
	if o.send.Left() > 0 {
		wakeFirst(&o.forWindow)
	}
}

func wakeFirst(queue *[]*Stream) {
	if len(*queue) > 0 {
		s := (*queue)[0]
		*queue = slices.Delete(*queue, 0, 1)
		s.queued = false
		s.writable.Signal()
	}
}

// frame appends a frame to the batch, and returns where it begins.
func (o *output) frame(t http2.FrameType, flags http2.Flags, stream uint32, payload []byte) int {
	at := o.frameHead(len(payload), t, flags, stream)
	o.pending = append(o.pending, payload...)
	return at
}

func (o *output) frameHead(length int, t http2.FrameType, flags http2.Flags, stream uint32) int {
	o.grow()
	at := len(o.pending)
	o.pending = h2.AppendFrameHead(o.pending, length, t, flags, stream)
	return at
}

// control counts a frame that answers the client's own. A client that does not read them loses the connection.
func (o *output) control() {
	if o.controls++; o.controls > controlMax {
		o.c.endLocked(errFlood)
	}
}

// answer appends a frame that answers the client's own.
func (o *output) answer(t http2.FrameType, flags http2.Flags, stream uint32, payload []byte) {
	if o.c.ended == nil {
		o.frame(t, flags, stream, payload)
		o.control()
	}
}

func (o *output) settings(settings ...http2.Setting) {
	o.frameHead(len(settings)*settingSize, http2.FrameSettings, 0, 0)
	for _, s := range settings {
		o.pending = binary.BigEndian.AppendUint16(o.pending, uint16(s.ID))
		o.pending = binary.BigEndian.AppendUint32(o.pending, s.Val)
	}
}

func (o *output) settingsAck() { o.answer(http2.FrameSettings, http2.FlagSettingsAck, 0, nil) }

func (o *output) ping(data []byte) { o.answer(http2.FramePing, http2.FlagPingAck, 0, data) }

func (o *output) reset(stream uint32, code http2.ErrCode) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(code))
	o.answer(http2.FrameRSTStream, 0, stream, b[:])
}

func (o *output) windowUpdate(stream uint32, by int) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(by))
	o.answer(http2.FrameWindowUpdate, 0, stream, b[:])
}

func (o *output) goAway(last uint32, code http2.ErrCode) {
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], last)
	binary.BigEndian.PutUint32(b[4:], uint32(code))
	o.answer(http2.FrameGoAway, 0, 0, b[:])
}

// data appends a DATA frame. It returns the frame's position and the number of its batch.
func (o *output) data(stream uint32, content []byte, end bool) (int, uint64) {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	return o.frame(http2.FrameData, flags, stream, content), o.batch
}

// head appends a header block; status is 0 for trailers. It returns the position of its HEADERS frame and the number of its
// batch.
func (o *output) head(stream uint32, status int, fields []hpack.HeaderField, end bool) (int, uint64) {
	var flags http2.Flags
	if end {
		flags = http2.FlagHeadersEndStream
	}
	at := o.frameHead(0, http2.FrameHeaders, flags, stream)
	if !o.begun {
		o.begun, o.pending = true, append(o.pending, h2.NoTable)
	}
	if status != 0 {
		o.pending = h2.AppendField(o.pending, &hpack.HeaderField{Name: ":status", Value: statusText(status)})
	}
	for i := range fields {
		if f := &fields[i]; validName(f.Name) && httpguts.ValidHeaderFieldValue(f.Value) {
			o.pending = h2.AppendField(o.pending, f)
		}
	}
	o.pending = h2.EndHead(o.pending, at)
	return at, o.batch
}

// statusText returns a status as digits.
func statusText(status int) string {
	switch status {
	case 200:
		return "200"
	case 204:
		return "204"
	case 304:
		return "304"
	case 404:
		return "404"
	}
	return strconv.Itoa(status)
}
