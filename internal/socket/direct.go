package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// Direct is a TCP connection that reads and writes with system calls that bypass the Go scheduler. The socket is in
// non-blocking mode: if it is not ready, the goroutine waits in the network poller as usual and deadlines apply. A call
// can still take time, for example when the kernel delivers a large write over loopback or allocates memory. During
// that time the monitor thread cannot hand the processor to another thread.
//
// Entering the scheduler wakes its monitor thread on nearly every request. The monitor then takes the processor from a
// goroutine that spends more than 20 µs in a send, which is common over loopback or a veth, where the sender also does
// the receiver's work. The calls here take microseconds, so they skip it.
//
// Create it with [NewDirect]. Safe for one reader and one writer at a time.
type Direct struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
	asking  *ask // nil before the first SendRequest
	filled  bool // the last read filled its buffer
	atEnd   bool // the last read reached the end of the stream
	paused  bool
}

// transfer is one direction of a [Direct].
type transfer struct {
	ready  func(fd uintptr) bool // read or write as a method value, allocated once
	b      []byte                // buffer to fill, or bytes still to send
	n      int                   // bytes moved
	noWait bool                  // fail with EAGAIN instead of waiting
	errno  syscall.Errno
}

// NewDirect returns c with direct reads and writes.
func NewDirect(c *net.TCPConn) net.Conn {
	raw, err := c.SyscallConn()
	if err != nil {
		return c // c is not connected
	}
	d := &Direct{TCPConn: c, raw: raw}
	d.in.ready, d.out.ready = d.in.read, d.out.write
	return d
}

// Listener accepts TCP connections with direct reads and writes.
type Listener struct{ net.Listener }

// Drain implements [Drainer] if l.Listener does.
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
	if d.paused {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := d.in.move(b, d.raw.Read)
	d.filled, d.atEnd = n == len(b), n == 0 && err == nil
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

// Filled reports whether the last read filled its buffer, so that the socket may hold more data.
func (d *Direct) Filled() bool { return d.filled }

// PauseReads makes reads of the socket fail immediately with [os.ErrDeadlineExceeded] until PauseReads(false). A layer above, such
// as TLS, then returns only data that it has already buffered.
func (d *Direct) PauseReads(held bool) { d.paused = held }

// Ended reports whether the last read reached the end of the stream.
func (d *Direct) Ended() bool { return d.atEnd }

// Quiet reports whether the socket has neither unread data nor an unread end of stream.
func (d *Direct) Quiet() bool {
	quiet := false
	return d.raw.Control(func(fd uintptr) { quiet = Quiet(int(fd)) }) == nil && quiet
}

// SetNonBlocking makes reads fail with [os.ErrDeadlineExceeded] instead of waiting, until SetNonBlocking(false).
func (d *Direct) SetNonBlocking(now bool) { d.in.noWait = now }

// Await waits until data or the end of the stream has arrived, without reading it. It uses little stack, so the
// goroutine of an idle connection keeps a small one.
func (d *Direct) Await() error {
	if err := d.raw.Read(arrived); err != nil {
		return d.failed("read", err)
	}
	return nil
}

// arrived reports whether a read would return without waiting.
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

// move fills or sends b each time the poller reports the socket ready. It keeps no reference to b.
func (t *transfer) move(b []byte, when func(func(fd uintptr) bool) error) (int, error) {
	t.b, t.n, t.errno = b, 0, 0
	err := when(t.ready)
	t.b = nil
	if err == nil && t.errno != 0 {
		err = t.errno
	}
	return t.n, err
}

// read receives the available bytes. It returns false to wait for some.
func (t *transfer) read(fd uintptr) bool {
	n, errno := transmit(syscall.SYS_RECVFROM, fd, t.b, 0)
	if errno == syscall.EAGAIN && !t.noWait {
		return false
	}
	t.n, t.errno = n, errno
	return true
}

// write sends until b is empty. It returns false to wait for space in the send buffer.
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

// transmit makes one system call and retries it after EINTR.
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

// failed wraps err as [net.TCPConn] would.
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

// ErrNotAsked reports that [Direct.SendRequest] sent no request because the peer had already sent data or closed.
var ErrNotAsked = errors.New("the peer is not waiting for a request")

// ask is the state of one [Direct.SendRequest] call. It is reused by later calls.
type ask struct {
	ready func(fd uintptr) bool // step as a method value, allocated once
	now   func(fd uintptr)      // the same, for AskNow
	b     []byte                // bytes still to send
	into  []byte                // buffer for the beginning of the answer
	n     int                   // bytes received into it
	sent  bool
	errno syscall.Errno // of sending
	fault syscall.Errno // of receiving
	spare [1]byte
}

// SendRequest sends a request to a peer that has been silent since its last answer and waits for the first bytes of the answer.
// It reads them into a buffer, which must not be empty, and returns their number. That is 0 if the read deadline passes first, if
// not all of the request could be sent without waiting, or if the peer has then ended its stream; the next read reports the timeout or the
// end. If the peer has sent data or closed the connection before, SendRequest sends no byte and returns [ErrNotAsked], because the
// caller would take that data for the answer. The check costs no extra system call: it replaces the read that would return EAGAIN.
func (d *Direct) SendRequest(b, into []byte) (n int, err error) {
	a := d.newAsk(b)
	a.into = into
	err = d.raw.Read(a.ready)
	rest := a.b
	a.b, a.into = nil, nil
	switch {
	case !a.sent:
		return 0, ErrNotAsked
	case a.errno != 0:
		return 0, d.failed("write", a.errno)
	case a.fault != 0:
		return 0, d.failed("read", a.fault)
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return 0, d.failed("read", err)
	}
	if a.n > 0 {
		d.filled, d.atEnd = a.n == len(into), false
	}
	_, err = d.Write(rest)
	return a.n, err
}

// AskNow is [Direct.SendRequest] without waiting. It returns how much of the request was sent: not all if the kernel has no room for more.
func (d *Direct) AskNow(b []byte) (sent int, err error) {
	a := d.newAsk(b)
	err = d.raw.Control(a.now)
	rest := len(a.b)
	a.b = nil
	switch {
	case err != nil:
		return 0, d.failed("write", err)
	case !a.sent:
		return 0, ErrNotAsked
	case a.errno != 0:
		return 0, d.failed("write", a.errno)
	}
	return len(b) - rest, nil
}

func (d *Direct) newAsk(b []byte) *ask {
	a := d.asking
	if a == nil {
		a = &ask{}
		a.ready, a.now, d.asking = a.step, func(fd uintptr) { a.step(fd) }, a
	}
	a.b, a.n, a.sent, a.errno, a.fault = b, 0, false, 0, 0
	return a
}

// step peeks at the socket and sends the request when called first, and later receives. It returns false to wait for the peer.
func (a *ask) step(fd uintptr) bool {
	if a.sent {
		n, errno := transmit(syscall.SYS_RECVFROM, fd, a.into, 0)
		if a.n = n; errno != syscall.EAGAIN {
			a.fault = errno
		}
		return errno != syscall.EAGAIN
	}
	if _, errno := transmit(syscall.SYS_RECVFROM, fd, a.spare[:], syscall.MSG_PEEK); errno != syscall.EAGAIN {
		return true
	}
	a.sent = true
	n, errno := transmit(syscall.SYS_SENDTO, fd, a.b, syscall.MSG_NOSIGNAL)
	a.b = a.b[n:]
	if errno != syscall.EAGAIN {
		a.errno = errno
	}
	return errno != 0 || len(a.b) > 0
}
