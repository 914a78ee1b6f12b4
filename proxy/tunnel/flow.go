package tunnel

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"boxgate/internal/buffers"
	"boxgate/internal/socket"
)

const (
	maxSplice = 1 << 20   // most bytes of one splice(2), and the size requested for pipes
	maxTurn   = 512 << 10 // most bytes that a flow moves in one turn
	bulkAfter = 64 << 10  // bytes that a flow moves before it may get a pipe: small transfers are cheaper to copy
	copySize  = 16 << 10
)

// flow is one direction of a tunnel. It has a pipe or a buffer only while bytes are in transit. Guarded by the tunnel's
// mutex; its methods do not block.
type flow struct {
	pipe      *pipe
	buf       *[]byte
	buffered  int   // bytes in the pipe or the buffer
	sent      int   // offset of held in the buffer
	total     int64 // bytes written
	bulk      bool  // reads fill a whole buffer
	ended     bool  // the source has ended
	endPassed bool  // the end was passed to the destination
}

// move moves data from one side to the other for up to one turn, and reports whether more can be moved now.
func (t *Tunnel) move(side int) (more bool, err error) {
	f, src, dst := &t.flows[side], &t.ends[side], &t.ends[1-side]
	for stop := f.total + maxTurn; f.total < stop; {
		switch {
		case f.buffered > 0 && !dst.writable:
			return false, nil
		case f.buffered > 0:
			err = t.drain(side, dst)
		case f.ended:
			return false, t.passEnd(side, dst)
		case !src.readable:
			f.drop(t)
			return false, nil
		default:
			err = t.fill(f, src)
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// fill reads up to a pipe or a buffer of data from src.
func (t *Tunnel) fill(f *flow, src *endpoint) error {
	if f.pipe == nil && f.bulk && !src.alert {
		f.recycle()
		f.pipe = t.pool.pipes.get(t.Count.Pipes)
	}
	n, err := t.readOnce(f, src)
	switch {
	case errors.Is(err, unix.EAGAIN):
		src.readable = false
		f.drop(t)
		return nil
	case err != nil:
		return err
	case n == 0:
		f.ended = true
		f.drop(t)
		return nil
	}
	f.buffered = n
	if f.pipe == nil && n < copySize && !src.alert {
		src.readable = false // a short read empties the socket (epoll(7)): the next byte causes an event
		f.ended = src.fin
	}
	f.bulk = n >= copySize && f.total+int64(n) >= bulkAfter
	return nil
}

// readOnce reads once. splice(2) does not cross urgent data: it returns EAGAIN there, or 0 as at the end. So both are confirmed
// by a read.
func (t *Tunnel) readOnce(f *flow, src *endpoint) (int, error) {
	if f.pipe != nil {
		n, err := socket.Splice(src.fd, f.pipe.w, maxSplice)
		if n > 0 || err != nil && !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		f.drop(t)
	}
	if f.buf == nil {
		f.buf = copyBuffers.Get()
	}
	return socket.Recv(src.fd, *f.buf)
}

// drain writes the held bytes until dst is full.
func (t *Tunnel) drain(side int, dst *endpoint) error {
	f := &t.flows[side]
	for f.buffered > 0 {
		if dst.delays && f.total > 0 {
			dst.delays = false
			_ = unix.SetsockoptInt(dst.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		}
		n, err := f.writeOnce(dst)
		switch {
		case errors.Is(err, unix.EAGAIN):
			dst.writable = false
			return nil
		case err != nil:
			return err
		case n <= 0:
			return io.ErrNoProgress
		}
		f.buffered -= n
		f.sent += n
		t.countWritten(side, n) // immediately, so that aborted tunnels are counted too
	}
	f.sent = 0
	return nil
}

// writeOnce writes once.
func (f *flow) writeOnce(dst *endpoint) (int, error) {
	if f.pipe != nil {
		return socket.Splice(f.pipe.r, dst.fd, f.buffered)
	}
	return socket.Send(dst.fd, (*f.buf)[f.sent:f.sent+f.buffered])
}

// countWritten counts bytes from one side that were written to the other.
func (t *Tunnel) countWritten(side, n int) {
	t.flows[side].total += int64(n)
	if side == client {
		t.Count.Out.Add(int64(n))
	} else {
		t.Count.In.Add(int64(n))
	}
}

// passEnd half-closes the destination after the source has ended. If the other flow has ended too, closing the sockets does
// that.
func (t *Tunnel) passEnd(side int, dst *endpoint) error {
	f := &t.flows[side]
	if f.endPassed {
		return nil
	}
	if !t.flows[1-side].endPassed {
		err := socket.Finish(dst.fd)
		if err != nil && !errors.Is(err, unix.ENOTCONN) { // the peer has already disconnected
			return err
		}
	}
	f.endPassed = true
	return nil
}

// drop releases the pipe or buffer, with the bytes in it if the tunnel has failed.
func (f *flow) drop(t *Tunnel) {
	if f.pipe != nil {
		t.pool.pipes.release(t.Count.Pipes, f.pipe, f.buffered == 0)
		f.pipe = nil
	}
	f.recycle()
	f.buffered, f.sent = 0, 0
}

// recycle releases the buffer.
func (f *flow) recycle() {
	if f.buf != nil {
		copyBuffers.Put(f.buf)
		f.buf = nil
	}
}

// copyBuffers are for small data, and for tunnels without a pipe.
var copyBuffers = buffers.NewPool(copySize)

// pipesIdle is the maximum number of unused pipes kept open.
const pipesIdle = 32

// pipePool pools the pipes through which splice(2) moves bytes. Each takes two descriptors, so their number is limited in
// total, and for each box to a quarter of that, because unread data of a box occupies its pipes. Tunnels without a pipe
// copy. Safe for concurrent use.
type pipePool struct {
	max int

	mu   sync.Mutex
	idle []*pipe
	lent int
}

type pipe struct{ r, w int }

// get returns a pipe and counts it in held, the number of pipes of the box. It returns nil if no pipe is available.
func (p *pipePool) get(held *atomic.Int64) *pipe {
	if held.Add(1) > int64((p.max+3)/4) {
		held.Add(-1)
		return nil
	}
	p.mu.Lock()
	if p.lent >= p.max {
		p.mu.Unlock()
		held.Add(-1)
		return nil
	}
	p.lent++
	if n := len(p.idle); n > 0 {
		got := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return got
	}
	p.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil { // out of descriptors
		p.mu.Lock()
		p.lent--
		p.mu.Unlock()
		held.Add(-1)
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, maxSplice) // a smaller one works as well
	return &pipe{fds[0], fds[1]}
}

// release returns a pipe to the pool, or closes it if it is not empty.
func (p *pipePool) release(held *atomic.Int64, got *pipe, empty bool) {
	held.Add(-1)
	p.mu.Lock()
	p.lent--
	keep := empty && len(p.idle) < min(pipesIdle, p.max)
	if keep {
		p.idle = append(p.idle, got)
	}
	p.mu.Unlock()
	if !keep {
		_ = unix.Close(got.r)
		_ = unix.Close(got.w)
	}
}

// close closes the unused pipes.
func (p *pipePool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.idle {
		_ = unix.Close(k.r)
		_ = unix.Close(k.w)
	}
	p.idle, p.max = nil, 0
}
