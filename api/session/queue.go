package session

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
