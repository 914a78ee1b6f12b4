package session

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api/problem"
)

// Limits on the bytes queued for a client that does not read.
const (
	sendBelow    = 64 << 10  // below this, another frame is accepted
	controlLimit = 128 << 10 // above this, pings from the client are not answered
	queueLimit   = 512 << 10 // hard limit
)

// flushTimeout bounds how long a closed connection keeps writing queued data.
const flushTimeout = 5 * time.Second

// queue is a connection with queued writes, so that the goroutine that reads frames and answers pings never waits for the
// client to read. (The WebSocket library ends a connection if a control frame cannot be written within a few seconds.)
type queue struct {
	net.Conn

	mu      sync.Mutex
	changed chan struct{} // closed and replaced on each change
	buf     []byte        // bytes to write
	writing int           // number of bytes being written
	closed  bool
	err     error // why writing failed
}

func newQueue(c net.Conn) *queue {
	q := &queue{Conn: c, changed: make(chan struct{})}
	go q.flush()
	return q
}

func (q *queue) changeLocked() {
	close(q.changed)
	q.changed = make(chan struct{})
}

var errQueueFull = errors.New("the client does not read")

// Write implements [net.Conn]. It never blocks.
func (q *queue) Write(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return 0, net.ErrClosed
	case q.err != nil:
		return 0, q.err
	case len(q.buf)+q.writing+len(b) > queueLimit:
		return 0, errQueueFull
	}
	q.buf = append(q.buf, b...)
	q.changeLocked()
	return len(b), nil
}

// flush writes the queue to the connection until the connection breaks, or is closed and the queue is empty.
func (q *queue) flush() {
	var err error
	for b := q.nextWrite(nil, nil); b != nil; b = q.nextWrite(b, err) {
		_, err = q.Conn.Write(b)
	}
	_ = q.Conn.Close()
}

// nextWrite waits for the next bytes to write; nil means the end. written is the previous buffer, to be reused, and err the
// result of writing it.
func (q *queue) nextWrite(written []byte, err error) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing, q.err = 0, err
	q.changeLocked()
	for len(q.buf) == 0 && q.err == nil && !q.closed {
		wait := q.changed
		q.mu.Unlock()
		<-wait
		q.mu.Lock()
	}
	if len(q.buf) == 0 || q.err != nil {
		return nil
	}
	b := q.buf
	q.buf, q.writing = written[:0], len(b)
	return b
}

// Close implements [net.Conn]. Queued data is still sent if the peer takes it within flushTimeout.
func (q *queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return net.ErrClosed
	}
	q.closed = true
	q.changeLocked()
	now := time.Now()
	return errors.Join(q.SetReadDeadline(now), q.SetWriteDeadline(now.Add(flushTimeout)))
}

// waitUntil waits for a condition on the queue. It fails when ctx ends or the connection is closed.
func (q *queue) waitUntil(ctx context.Context, holds func() bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.err != nil:
			return q.err
		case q.closed:
			return net.ErrClosed
		case holds():
			return nil
		}
		wait := q.changed
		q.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		q.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// waitForRoom waits until another frame may be written.
func (q *queue) waitForRoom(ctx context.Context) error {
	return q.waitUntil(ctx, func() bool { return len(q.buf)+q.writing < sendBelow })
}

// idle reports whether the queue is empty.
func (q *queue) idle() bool { return q.waiting() == 0 }

// roomForControl reports whether there is room for the answer to a ping.
func (q *queue) roomForControl() bool { return q.waiting() < controlLimit }

func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.buf) + q.writing
}

// waitDelivered waits until the peer's kernel has acknowledged everything written.
func (q *queue) waitDelivered(ctx context.Context) error {
	if err := q.waitUntil(ctx, func() bool { return len(q.buf)+q.writing == 0 }); err != nil {
		return err
	}
	for pause := time.Millisecond; q.unacknowledged() > 0; pause = min(2*pause, time.Second) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// unacknowledged returns the number of bytes in the kernel's send queue without an acknowledgement, or 0 if unknown.
func (q *queue) unacknowledged() (n int) {
	q.withFD(func(fd int) error {
		var err error
		n, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		return err
	})
	return n
}

// peerLost reports whether the peer has vanished.
func (q *queue) peerLost() (lost bool) {
	q.withFD(func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		lost = err == nil && vanished(info, maxSilence)
		return err
	})
	return lost
}

// A peer counts as vanished after maxSilence without a packet, if also data or maxProbes window probes are unanswered.
const (
	maxSilence = 30 * time.Second
	maxProbes  = 3
)

// vanished decides from the kernel's TCP state. A peer that does not read answers probes with a zero window for as long
// as it takes; one that vanished answers neither probes nor data that it had space for.
func vanished(info *unix.TCPInfo, silence time.Duration) bool {
	silent := time.Duration(info.Last_ack_recv)*time.Millisecond > silence
	return silent && (info.Unacked > 0 && info.Snd_wnd > 0 || info.Probes >= maxProbes)
}

// withFD calls f with the file descriptor of the connection, if it has one.
func (q *queue) withFD(f func(fd int) error) {
	c := q.Conn
	if wrapped, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = wrapped.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := sc.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = f(int(fd)) })
	}
}

// queuedWriter is a response whose hijacked connection is a queue.
type queuedWriter struct {
	http.ResponseWriter
	queue *queue
}

// Hijack implements [http.Hijacker].
func (w *queuedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.queue = newQueue(conn)
	return w.queue, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(w.queue)), nil
}

// Limits on input buffered for a command that does not read it.
const (
	maxUnread  = 1 << 20      // per session
	maxUnacked = 1 << 20      // on top of maxUnread, for a client whose input is acknowledged and which must wait for that
	maxInput   = 64 << 20     // for a client without acknowledgements: reading continues so that its signals do not wait behind its input
	maxInputs  = 4 * maxInput // for all such clients together, on top of maxUnread for each
)

// budget is a limit shared by many sessions.
type budget struct {
	limit int64
	used  atomic.Int64
}

// reserve reserves n more, or reports false. A negative n releases.
func (b *budget) reserve(n int64) bool {
	if b.used.Add(n) <= b.limit || n <= 0 {
		return true
	}
	b.used.Add(-n)
	return false
}

// inbox buffers the input of a command until it is read, so that signals need not wait behind it.
type inbox struct {
	acks   bool    // input is acknowledged, and the client sends little beyond that
	shared *budget // budget of all inboxes for input beyond maxUnread

	mu        sync.Mutex
	changed   sync.Cond
	buf       []byte
	reserved  int64 // bytes reserved from the shared budget
	received  int64 // bytes received from the client
	ended     bool  // the client sends no more input
	discarded bool  // the command reads no more input
}

func newInbox(acks bool, shared *budget) *inbox {
	i := &inbox{acks: acks, shared: shared}
	i.changed.L = &i.mu
	return i
}

// add adds input from the client. If the buffer is full, it waits for the command to read or for ctx to end. A client
// whose input is acknowledged gets an error instead, because a blocked add would also hold up its acknowledgements of
// output.
func (i *inbox) add(ctx context.Context, b []byte) error {
	defer i.wakeOnDone(ctx)()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.received += int64(len(b))
	if i.ended || i.discarded {
		i.changed.Broadcast()
		return nil
	}
	i.buf = append(i.buf, b...)
	i.changed.Broadcast()
	if i.acks {
		if len(i.buf) > maxUnread+maxUnacked {
			return problem.Invalid("/data", "is more than %d bytes beyond what was acknowledged; wait for the acknowledgements", maxUnacked)
		}
		return nil
	}
	for !i.reserveLocked() && !i.discarded && ctx.Err() == nil {
		i.changed.Wait()
	}
	return nil
}

// reserveLocked reserves space for the input from the shared budget and reports whether that succeeded.
func (i *inbox) reserveLocked() bool {
	need := max(0, int64(len(i.buf))-maxUnread)
	if need > maxInput || !i.shared.reserve(need-i.reserved) {
		return false
	}
	i.reserved = need
	return true
}

// wakeOnDone wakes all waiters when ctx ends. stop undoes it.
func (i *inbox) wakeOnDone(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.changed.Broadcast()
	})
}

// waitReceived waits until more than known bytes are acknowledged. Input is acknowledged when received, up to maxUnread
// beyond the bytes that the command has read.
func (i *inbox) waitReceived(ctx context.Context, known int64) (int64, error) {
	defer i.wakeOnDone(ctx)()
	i.mu.Lock()
	defer i.mu.Unlock()
	for ctx.Err() == nil {
		if n := i.received - max(0, int64(len(i.buf))-maxUnread); n > known {
			return n, nil
		}
		i.changed.Wait()
	}
	return 0, ctx.Err()
}

// receivedBytes returns the number of bytes received.
func (i *inbox) receivedBytes() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.received
}

// closeWrite marks the end of the input.
func (i *inbox) closeWrite() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.changed.Broadcast()
}

// discard drops the input of a command that has ended.
func (i *inbox) discard() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.discarded = true
	i.replaceLocked(nil)
}

// replaceLocked replaces the buffer by its unread rest and releases the shared budget that this frees.
func (i *inbox) replaceLocked(rest []byte) {
	i.buf = rest
	if need := max(0, int64(len(rest))-maxUnread); need < i.reserved {
		i.shared.reserve(need - i.reserved)
		i.reserved = need
	}
	i.changed.Broadcast()
}

// Read implements [io.Reader] for the command.
func (i *inbox) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.buf) == 0 {
		if i.ended || i.discarded {
			return 0, io.EOF
		}
		i.changed.Wait()
	}
	n := copy(p, i.buf)
	rest := i.buf[n:]
	if len(rest) == 0 {
		rest = nil // free the buffer instead of keeping its capacity
	}
	i.replaceLocked(rest)
	return n, nil
}

// Limits on the output buffered for the client: bytes, number of chunks and approximate size of each. At the limit, the
// command's writes block.
const (
	maxUnsent = 512 << 10
	maxChunks = 4096
	chunkSize = 16 << 10
)

// chunk is a piece of output. Offsets count both streams together.
type chunk struct {
	stream string
	data   []byte
	end    int64 // offset of its end
}

// outbox buffers the output of a command until the client has received it.
type outbox struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced on each change
	chunks  []chunk       // not yet confirmed by the client; oldest first
	written int64
	acked   int64 // confirmed by the client
	closed  bool  // further output is discarded
}

func newOutbox() *outbox { return &outbox{changed: make(chan struct{})} }

func (o *outbox) changeLocked() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// stream returns the writer for one of the command's streams.
func (o *outbox) stream(name string) writerFunc {
	return func(b []byte) (int, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for (o.written-o.acked >= maxUnsent || len(o.chunks) >= maxChunks) && !o.closed {
			wait := o.changed
			o.mu.Unlock()
			<-wait
			o.mu.Lock()
		}
		if !o.closed {
			o.addLocked(name, b)
			o.changeLocked()
		}
		return len(b), nil
	}
}

// addLocked appends output, to the last chunk if that is small. Copies of that chunk handed out earlier are not affected.
func (o *outbox) addLocked(stream string, b []byte) {
	o.written += int64(len(b))
	if n := len(o.chunks); n > 0 && o.chunks[n-1].stream == stream && len(o.chunks[n-1].data) < chunkSize {
		last := &o.chunks[n-1]
		last.data, last.end = append(last.data, b...), o.written
		return
	}
	o.chunks = append(o.chunks, chunk{stream, slices.Clone(b), o.written})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// close ends the output. Buffered output can still be read.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changeLocked()
}

// next waits for output after the offset. more is false at the end of the output.
func (o *outbox) next(ctx context.Context, after int64) (c chunk, more bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for _, c := range o.chunks {
			if c.end > after {
				c.data = c.data[max(0, int64(len(c.data))-(c.end-after)):]
				return c, true, nil
			}
		}
		if o.closed {
			return chunk{}, false, nil
		}
		wait := o.changed
		o.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			err = ctx.Err()
		}
		o.mu.Lock()
		if err != nil {
			return chunk{}, false, err
		}
	}
}

// acknowledge records that the client has received the output up to the offset, and reports whether that much was written.
func (o *outbox) acknowledge(upTo int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if upTo > o.written {
		return false
	}
	if upTo > o.acked {
		o.acked = upTo
		o.chunks = slices.DeleteFunc(o.chunks, func(c chunk) bool { return c.end <= upTo })
		o.changeLocked()
	}
	return true
}

// retains reports whether the output from the offset on is still available.
func (o *outbox) retains(offset int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return offset >= o.acked && offset <= o.written
}
