package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/buffers"
)

// spliceMost is the most that is moved at once, and the size requested for a pipe.
const spliceMost = 1 << 20

// flow is one direction of a tunnel. It keeps a pipe or a buffer only while it has bytes in transit.
type flow struct {
	s        *splicing
	dst, src *net.TCPConn
	in, out  syscall.RawConn // of src and dst
	reader   func(fd uintptr) bool
	writer   func(fd uintptr) bool
	patience [2]time.Time // the current read and write deadlines

	pipe *pipe
	buf  *[]byte
	held int   // bytes in the pipe or the buffer
	sent int   // of those in the buffer
	err  error // error of the last system call

	count *atomic.Int64 // bytes that dst took
}

// copy relays one direction until EOF, which it passes on while the other direction stays open.
func (s *splicing) copy(dst, src *net.TCPConn, count *atomic.Int64) error {
	f := &flow{s: s, dst: dst, src: src, count: count}
	f.reader, f.writer = f.read, f.write
	var err1, err2 error
	f.in, err1 = src.SyscallConn()
	f.out, err2 = dst.SyscallConn()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer f.drop()
	for {
		n, err := f.fill()
		if err != nil {
			return err
		}
		if n == 0 {
			return gone(dst.CloseWrite())
		}
		if err := f.drain(); err != nil {
			return err
		}
	}
}

// fill waits for bytes from src and takes up to spliceMost of them; none means EOF.
func (f *flow) fill() (int, error) {
	err := f.whileBytesMove(0, f.src.SetReadDeadline, func() error { return f.in.Read(f.reader) })
	if err == nil {
		err = f.err
	}
	if err == nil && f.held > 0 {
		f.s.progressed()
	}
	return f.held, err
}

// drain writes the bytes taken to dst.
func (f *flow) drain() error {
	for f.held > 0 {
		if err := f.whileBytesMove(1, f.dst.SetWriteDeadline, func() error { return f.out.Write(f.writer) }); err != nil {
			return err
		}
		if f.err != nil {
			return f.err
		}
		f.s.progressed()
	}
	f.drop()
	return nil
}

// whileBytesMove retries until bytes have moved, or none have moved in either direction for the idle timeout. An
// attempt that hits its deadline loses nothing. Setting a deadline costs more than reading the clock, so it is renewed
// only when half of it has passed.
func (f *flow) whileBytesMove(which int, setDeadline func(time.Time) error, try func() error) error {
	for {
		now := time.Now()
		if f.patience[which].Sub(now) < f.s.idle/2 {
			until := f.s.moved().Add(f.s.idle)
			if !until.After(now) {
				return ErrIdle
			}
			if err := setDeadline(until); err != nil {
				return err
			}
			f.patience[which] = until
		}
		err := try()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		f.patience[which] = time.Time{}
	}
}

// read takes what src has, and reports false if nothing is available yet.
func (f *flow) read(fd uintptr) bool {
	if f.pipe = f.s.pipes.get(f.s.held); f.pipe == nil {
		f.buf = copyBuffers.Get()
	}
	for {
		if f.pipe != nil {
			var n int64
			n, f.err = unix.Splice(int(fd), nil, f.pipe.w, nil, spliceMost, unix.SPLICE_F_NONBLOCK)
			f.held = max(int(n), 0)
		} else {
			f.held, f.err = unix.Read(int(fd), *f.buf)
			f.held = max(f.held, 0)
		}
		switch f.err {
		case unix.EINTR: //nolint:errorlint // a bare system call
		case unix.EAGAIN:
			f.drop()
			return false
		default:
			return true
		}
	}
}

// write writes what dst accepts, and reports false if that is nothing yet.
func (f *flow) write(fd uintptr) bool {
	for f.held > 0 {
		var n int
		if f.pipe != nil {
			var moved int64
			moved, f.err = unix.Splice(f.pipe.r, nil, int(fd), nil, f.held, unix.SPLICE_F_NONBLOCK)
			n = int(moved)
		} else {
			n, f.err = unix.Write(int(fd), (*f.buf)[f.sent:f.sent+f.held])
		}
		switch {
		case f.err == unix.EINTR: //nolint:errorlint // a bare system call
			continue
		case f.err == unix.EAGAIN: //nolint:errorlint // likewise
			f.err = nil
			return false
		case f.err == nil && n <= 0:
			f.err = io.ErrNoProgress
		}
		if f.err != nil {
			return true
		}
		f.held -= n
		f.sent += n
		f.count.Add(int64(n)) // at once, so that aborted tunnels are counted too
	}
	return true
}

// drop releases the pipe or buffer once it is empty, or when the tunnel has failed and its bytes are lost.
func (f *flow) drop() {
	if f.pipe != nil {
		f.s.pipes.put(f.s.held, f.pipe, f.held == 0)
	}
	if f.buf != nil {
		copyBuffers.Put(f.buf)
	}
	f.pipe, f.buf, f.held, f.sent = nil, nil, 0, 0
}

// progressed notes that bytes have moved.
func (s *splicing) progressed() { s.progress.Store(int64(time.Since(s.began))) }

// moved returns when bytes last moved in either direction.
func (s *splicing) moved() time.Time { return s.began.Add(time.Duration(s.progress.Load())) }

// copyBuffers are for tunnels that get no pipe.
var copyBuffers = buffers.NewPool(16 << 10)
