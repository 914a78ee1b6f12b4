package tunnel

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
)

// This file connects tunnels to their servers without a waiting goroutine. A tunnel needs none of the features of
// net.Dialer.

// dial is a connection attempt.
type dial struct {
	to        netip.AddrPort
	first     []byte        // sent to the server first
	timeout   time.Duration // remaining time for the attempt
	slowAfter time.Duration // time until Owner.Slow is called; 0 after that
	failed    bool
}

// slowTimeout is the initial [dial.slowAfter] (RFC 8305, 5).
const slowTimeout = 250 * time.Millisecond

// MaxFirst is the maximum length in bytes of a tunnel's first data: it fits into the send buffer of any new socket.
const MaxFirst = 4 << 10

// Dial returns a tunnel that connects to an address, from a local one if from is valid, sends first, and then relays. It
// begins when [Tunnel.Start] is called. If the server refuses or does not accept within timeout, [Owner.Failed] is called.
// first must not change until Opened or Failed is called. If Dial returns an error, no attempt was made, and no method of
// the owner is called.
func (p *Pool) Dial(s Spec, from netip.Addr, to netip.AddrPort, first []byte, timeout time.Duration) (*Tunnel, error) {
	if len(first) == 0 || len(first) > MaxFirst {
		return nil, errors.ErrUnsupported
	}
	if timeout <= 0 {
		return nil, os.ErrDeadlineExceeded
	}
	fd, err := connect(from, to)
	if err != nil {
		return nil, err
	}
	t := &Tunnel{Spec: s, pool: p, dial: &dial{to: to, first: first, timeout: timeout, slowAfter: slowTimeout}}
	t.ends[client] = endpoint{conn: s.Client, fd: -1, writable: true}
	t.ends[server] = endpoint{fd: fd, writable: true, delays: true}
	return t, nil
}

// connect starts to connect a new socket, without waiting.
func connect(from netip.Addr, to netip.AddrPort) (fd int, err error) {
	a := to.Addr().Unmap()
	family := unix.AF_INET
	switch {
	case a.Is4():
	case a.Is6() && a.Zone() == "":
		family = unix.AF_INET6
	default:
		return -1, errors.ErrUnsupported
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if from.IsValid() {
		err = socket.Bind(fd, from)
	}
	if err == nil {
		err = os.NewSyscallError("connect", socket.Connect(fd, netip.AddrPortFrom(a, to.Port())))
	}
	if err == nil || errors.Is(err, unix.EINPROGRESS) {
		return fd, nil
	}
	_ = unix.Close(fd)
	return -1, err
}

// connected handles events until the server has accepted and the first bytes are sent. It reports whether the tunnel relays
// from now on.
func (t *Tunnel) connected(what uint32) bool {
	e := &t.ends[server]
	if what&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		t.unreachable(os.NewSyscallError("connect", refusal(e.fd)))
		return false
	}
	if what&unix.EPOLLOUT == 0 {
		return false
	}
	n, err := socket.Send(e.fd, t.dial.first)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false // an event follows when there is space
	case err != nil:
		t.unreachable(os.NewSyscallError("write", err))
		return false
	}
	t.startRelay(n)
	if err := t.loop.watch(t, client); err != nil {
		t.closeBoth(err, true)
		return false
	}
	return true
}

// onSlowDial is called by the timer when an attempt has taken longer than slowAfter or its timeout.
func (t *Tunnel) onSlowDial() {
	d := t.dial
	if d.timeout -= d.slowAfter; d.slowAfter == 0 || d.timeout <= 0 {
		t.unreachable(os.ErrDeadlineExceeded)
		return
	}
	d.slowAfter = 0
	t.timer.Reset(d.timeout)
	t.report = t.Owner.Slow
}

// Yield abandons the attempt in favour of a connection to another server, unless it has already succeeded. It reports
// whether the client now belongs to the caller. The owner receives no further calls, except for a Failed that has already
// been due.
func (t *Tunnel) Yield() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.dial == nil, t.closed && !t.dial.failed:
		return false
	case !t.closed:
		t.release()
		t.ends[server].close(true)
	}
	return true
}

// refusal returns the error of a failed connect.
func refusal(fd int) error {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return err
	case code == 0:
		return unix.ECONNRESET
	default:
		return unix.Errno(code)
	}
}

// startRelay turns a connection attempt into a relaying tunnel, after n of the first bytes were sent.
func (t *Tunnel) startRelay(n int) {
	first := t.dial.first
	t.dial = nil
	t.countWritten(client, n)
	if n < len(first) {
		f := &t.flows[client]
		f.buf = copyBuffers.Get()
		f.buffered = copy(*f.buf, first[n:])
	}
	t.lastMoved = time.Now()
	t.timer.Reset(min(t.pool.idle, keepAliveAfter, t.pool.LostAfter))
	t.Owner.Opened()
}

// keepAliveAfter is the age at which keep-alive is set: most tunnels are closed before.
const keepAliveAfter = 10 * time.Second

// keepAlive enables keep-alive, so that the kernel detects an idle server that is gone.
func (t *Tunnel) keepAlive() {
	if e := t.ends[server]; e.conn == nil && !t.keepAliveSet {
		t.keepAliveSet = true
		socket.SetKeepAlive(e.fd)
	}
}

// unreachable ends an attempt that failed. The client is left untouched.
func (t *Tunnel) unreachable(err error) {
	t.dial.failed = true
	failed := &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(t.dial.to), Err: err}
	t.release()
	t.ends[server].close(true)
	t.report = func() { go t.runReport(func() { t.Owner.Failed(failed) }) }
}
