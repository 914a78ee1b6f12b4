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

	"boxgate/proxy/buffers"
)

// spliceMost is how much is moved at once; it is also the size asked for a pipe.
const spliceMost = 1 << 20

// flow is one direction of a tunnel. It holds a pipe, or else a buffer, only while bytes are on their way.
type flow struct {
	s        *splicing
	dst, src *net.TCPConn
	in, out  syscall.RawConn // of src and dst
	reader   func(fd uintptr) bool
	writer   func(fd uintptr) bool
	patience [2]time.Time // the deadlines set last, for reading and writing

	pipe *pipe
	buf  *[]byte
	held int   // bytes in the pipe or the buffer
	sent int   // of those in the buffer
	err  error // of the last system call

	count *atomic.Int64 // bytes that dst took
}

// copy moves one direction until its end, which it passes on, leaving the other direction open.
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

// fill waits for bytes of src and takes up to spliceMost of them; none means its end.
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

// drain hands what was taken to dst.
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

// whileBytesMove tries until bytes have moved, or none have for the idle timeout in either direction. A try that runs into its
// deadline has lost nothing. To set a deadline costs more than to look at the clock: it is set anew when half of it is over.
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

// read takes what src has, and reports false if that is nothing yet.
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

// write hands on what dst takes, and reports false if that is nothing yet.
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
		f.count.Add(int64(n)) // now: a tunnel that breaks off has carried them
	}
	return true
}

// drop gives back what holds no byte any more, or whose bytes are lost with the tunnel.
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

// moved is when bytes last moved either way.
func (s *splicing) moved() time.Time { return s.began.Add(time.Duration(s.progress.Load())) }

// copyBuffers are for tunnels that find no pipe.
var copyBuffers = buffers.NewPool(16 << 10)
