package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// Direct is a TCP connection whose reads and writes are system calls that the Go scheduler is not told of. None waits for
// the peer: the socket is in non-blocking mode, and where it is not ready the goroutine waits in the network poller as
// always, deadlines included. A call can still take its time, as when the kernel delivers a large write over loopback
// itself, or needs memory; the monitor thread then cannot hand the processor to another thread.
//
// The scheduler need not be told what takes microseconds: when it is, it wakes its monitor thread for nearly every
// request, which takes the processor from a goroutine that is longer than 20 µs in sending, as over loopback or a veth,
// where the sender does the receiver's work.
//
// Create it with [NewDirect]. Safe for one reader and one writer at a time.
type Direct struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
	asking  *ask // nil until there is one
	more    bool // the last read got all that it had room for
	ended   bool // the last read found the end
	held    bool
}

// transfer is one direction of a [Direct].
type transfer struct {
	ready func(fd uintptr) bool // read or write, made once
	b     []byte                // what to fill, or what is left to send
	n     int                   // bytes moved
	now   bool                  // what would have to be waited for is an error
	errno syscall.Errno
}

// NewDirect returns c with direct reads and writes.
func NewDirect(c *net.TCPConn) net.Conn {
	raw, err := c.SyscallConn()
	if err != nil {
		return c // which is no connection
	}
	d := &Direct{TCPConn: c, raw: raw}
	d.in.ready, d.out.ready = d.in.read, d.out.write
	return d
}

// Listener accepts TCP connections with direct reads and writes.
type Listener struct{ net.Listener }

// Drain implements [Drainer] if that is one.
func (l Listener) Drain() { Drain(l.Listener) }

// Accept implements [net.Listener].
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		return NewDirect(tcp), err
	}
	return c, err
}

// DirectOf returns the connection with direct reads and writes that c is or wraps.
func DirectOf(c net.Conn) (*Direct, bool) {
	switch c := c.(type) {
	case *Direct:
		return c, true
	case interface{ NetConn() net.Conn }:
		return DirectOf(c.NetConn())
	default:
		return nil, false
	}
}

// NetConn returns the TCP connection.
func (d *Direct) NetConn() net.Conn { return d.TCPConn }

// Read implements [net.Conn].
func (d *Direct) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if d.held {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := d.in.move(b, d.raw.Read)
	d.more, d.ended = n == len(b), n == 0 && err == nil
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return 0, os.ErrDeadlineExceeded
	case err != nil:
		return n, d.failed("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// More reports whether the last read may have left something in the socket: it got all that it had room for.
func (d *Direct) More() bool { return d.more }

// Hold makes reads fail with [os.ErrDeadlineExceeded] at once, until it is taken back. What a layer above returns
// meanwhile is what it had already read.
func (d *Direct) Hold(held bool) { d.held = held }

// Ended reports whether the last read has found that the peer had ended its side.
func (d *Direct) Ended() bool { return d.ended }

// Quiet reports whether the peer has sent nothing that was not read, not even the end.
func (d *Direct) Quiet() bool {
	quiet := false
	return d.raw.Control(func(fd uintptr) { quiet = Quiet(int(fd)) }) == nil && quiet
}

// DontWait makes reads fail with [os.ErrDeadlineExceeded] if nothing has arrived, until it is taken back.
func (d *Direct) DontWait(now bool) { d.in.now = now }

// Await waits until something has arrived, data or the end, without reading it. It needs little of the stack, so that the
// goroutine of a connection that rests can do without a larger one.
func (d *Direct) Await() error {
	if err := d.raw.Read(arrived); err != nil {
		return d.failed("read", err)
	}
	return nil
}

// arrived reports whether a read would not have to wait.
func arrived(fd uintptr) bool {
	var spare [1]byte
	_, errno := transmit(syscall.SYS_RECVFROM, fd, spare[:], syscall.MSG_PEEK)
	return errno != syscall.EAGAIN
}

// Write implements [net.Conn].
func (d *Direct) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := d.out.move(b, d.raw.Write)
	if err != nil {
		return n, d.failed("write", err)
	}
	return n, nil
}

// move fills or sends b when the poller says that the socket is ready. It keeps no reference to b.
func (t *transfer) move(b []byte, when func(func(fd uintptr) bool) error) (int, error) {
	t.b, t.n, t.errno = b, 0, 0
	err := when(t.ready)
	t.b = nil
	if err == nil && t.errno != 0 {
		err = t.errno
	}
	return t.n, err
}

// read receives what there is, and reports false if that is nothing yet.
func (t *transfer) read(fd uintptr) bool {
	n, errno := transmit(syscall.SYS_RECVFROM, fd, t.b, 0)
	if errno == syscall.EAGAIN && !t.now {
		return false
	}
	t.n, t.errno = n, errno
	return true
}

// write sends what it can, and reports false if there is more.
func (t *transfer) write(fd uintptr) bool {
	for len(t.b) > 0 {
		n, errno := transmit(syscall.SYS_SENDTO, fd, t.b, syscall.MSG_NOSIGNAL)
		if errno == syscall.EAGAIN {
			return false
		}
		if t.errno = errno; errno != 0 {
			return true
		}
		t.b, t.n = t.b[n:], t.n+n
	}
	return true
}

// transmit makes one system call, again if a signal interrupts it.
func transmit(call, fd uintptr, b []byte, flags uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags|syscall.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// failed returns the error as [net.TCPConn] would.
func (d *Direct) failed(op string, err error) error {
	var wrapped *net.OpError
	var errno syscall.Errno
	switch {
	case errors.As(err, &wrapped):
		err = wrapped.Err
	case errors.As(err, &errno):
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: d.LocalAddr(), Addr: d.RemoteAddr(), Err: err}
}
