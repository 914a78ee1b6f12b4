package tunnel

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"boxgate/internal/buffers"
	"boxgate/internal/socket"
)

const (
	spliceMost = 1 << 20   // the most that is moved at once, and the size requested for a pipe
	turnMost   = 512 << 10 // what a flow may move before others have their turn
	bulkAfter  = 64 << 10  // what a flow has moved before it may take a pipe: little data costs less when it is copied
	copySize   = 16 << 10
)

// flow is one direction of a tunnel. It keeps a pipe or a buffer only while it has bytes in transit. It is guarded by
// the tunnel's mutex, and nothing that it does blocks.
type flow struct {
	pipe   *pipe
	buf    *[]byte
	held   int   // bytes in the pipe or the buffer
	sent   int   // of those in the buffer
	total  int64 // bytes that were written
	bulk   bool  // bytes come faster than one buffer takes them
	ended  bool  // the source has ended
	passed bool  // and the destination was told
}

// run moves what one side sends to the other, and reports whether there may be more.
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

// fill takes up to a pipe or a buffer of what src has.
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
		src.in = false // the socket is empty (epoll(7)): the next byte is an event
		f.ended = src.fin
	}
	f.bulk = n >= copySize && f.total+int64(n) >= bulkAfter
	return nil
}

// take reads once. splice(2) does not get past urgent data: it stops there as if there were nothing, or at the end. So
// only a read is believed that.
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

// drain writes what was taken, until dst has no room.
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
		t.wrote(side, n) // at once, so that aborted tunnels are counted too
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

// wrote counts bytes from one side that the other took.
func (t *Tunnel) wrote(side, n int) {
	t.flows[side].total += int64(n)
	if side == client {
		t.Count.Out.Add(int64(n))
	} else {
		t.Count.In.Add(int64(n))
	}
}

// pass tells the destination that the source has ended. The last flow leaves that to closing.
func (t *Tunnel) pass(side int, dst *end) error {
	f := &t.flows[side]
	if f.passed {
		return nil
	}
	if !t.flows[1-side].passed {
		err := socket.Finish(dst.fd)
		if err != nil && !errors.Is(err, unix.ENOTCONN) { // of a peer that has already disconnected
			return err
		}
	}
	f.passed = true
	return nil
}

// drop releases the pipe or buffer once it is empty, or when the tunnel has failed and its bytes are lost.
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

// copyBuffers are for small data, and for tunnels that get no pipe.
var copyBuffers = buffers.NewPool(copySize)
