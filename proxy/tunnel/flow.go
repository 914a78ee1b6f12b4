package tunnel

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"boxgate/internal/buffers"
	"boxgate/internal/socket"
)

const (
	spliceMost = 1 << 20   // most bytes of one splice(2), and the size requested for pipes
	turnMost   = 512 << 10 // most bytes that a flow moves in one turn
	bulkAfter  = 64 << 10  // bytes that a flow moves before it may get a pipe: small transfers are cheaper to copy
	copySize   = 16 << 10
)

// flow is one direction of a tunnel. It has a pipe or a buffer only while bytes are in transit. Guarded by the tunnel's
// mutex; its methods do not block.
type flow struct {
	pipe   *pipe
	buf    *[]byte
	held   int   // bytes in the pipe or the buffer
	sent   int   // offset of held in the buffer
	total  int64 // bytes written
	bulk   bool  // reads fill a whole buffer
	ended  bool  // the source has ended
	passed bool  // the end was passed to the destination
}

// run moves data from one side to the other for up to one turn, and reports whether more can be moved now.
func (t *Tunnel) run(side int) (more bool, err error) {
	f, src, dst := &t.flows[side], &t.ends[side], &t.ends[1-side]
	for stop := f.total + turnMost; f.total < stop; {
		switch {
		case f.held > 0 && !dst.out:
			return false, nil
		case f.held > 0:
			err = t.drain(side, dst)
		case f.ended:
			return false, t.pass(side, dst)
		case !src.in:
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
func (t *Tunnel) fill(f *flow, src *end) error {
	if f.pipe == nil && f.bulk && !src.alert {
		f.recycle()
		f.pipe = t.pool.pipes.get(t.Count.Pipes)
	}
	n, err := t.take(f, src)
	switch {
	case errors.Is(err, unix.EAGAIN):
		src.in = false
		f.drop(t)
		return nil
	case err != nil:
		return err
	case n == 0:
		f.ended = true
		f.drop(t)
		return nil
	}
	f.held = n
	if f.pipe == nil && n < copySize && !src.alert {
		src.in = false // a short read empties the socket (epoll(7)): the next byte causes an event
		f.ended = src.fin
	}
	f.bulk = n >= copySize && f.total+int64(n) >= bulkAfter
	return nil
}

// take reads once. splice(2) does not cross urgent data: it returns EAGAIN there, or 0 as at the end. So both are confirmed
// by a read.
func (t *Tunnel) take(f *flow, src *end) (int, error) {
	if f.pipe != nil {
		n, err := socket.Splice(src.fd, f.pipe.w, spliceMost)
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
func (t *Tunnel) drain(side int, dst *end) error {
	f := &t.flows[side]
	for f.held > 0 {
		if dst.delays && f.total > 0 {
			dst.delays = false
			_ = unix.SetsockoptInt(dst.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		}
		n, err := f.give(dst)
		switch {
		case errors.Is(err, unix.EAGAIN):
			dst.out = false
			return nil
		case err != nil:
			return err
		case n <= 0:
			return io.ErrNoProgress
		}
		f.held -= n
		f.sent += n
		t.wrote(side, n) // immediately, so that aborted tunnels are counted too
	}
	f.sent = 0
	return nil
}

// give writes once.
func (f *flow) give(dst *end) (int, error) {
	if f.pipe != nil {
		return socket.Splice(f.pipe.r, dst.fd, f.held)
	}
	return socket.Send(dst.fd, (*f.buf)[f.sent:f.sent+f.held])
}

// wrote counts bytes from one side that were written to the other.
func (t *Tunnel) wrote(side, n int) {
	t.flows[side].total += int64(n)
	if side == client {
		t.Count.Out.Add(int64(n))
	} else {
		t.Count.In.Add(int64(n))
	}
}

// pass half-closes the destination after the source has ended. If the other flow has ended too, closing the sockets does
// that.
func (t *Tunnel) pass(side int, dst *end) error {
	f := &t.flows[side]
	if f.passed {
		return nil
	}
	if !t.flows[1-side].passed {
		err := socket.Finish(dst.fd)
		if err != nil && !errors.Is(err, unix.ENOTCONN) { // the peer has already disconnected
			return err
		}
	}
	f.passed = true
	return nil
}

// drop releases the pipe or buffer, with the bytes in it if the tunnel has failed.
func (f *flow) drop(t *Tunnel) {
	if f.pipe != nil {
		t.pool.pipes.put(t.Count.Pipes, f.pipe, f.held == 0)
		f.pipe = nil
	}
	f.recycle()
	f.held, f.sent = 0, 0
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
