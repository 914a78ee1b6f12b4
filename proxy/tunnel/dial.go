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

// This file connects tunnels to their servers without a goroutine that waits: a connection that is passed on needs none
// of what net.Dialer arranges.

// dial is a connection attempt.
type dial struct {
	to       netip.AddrPort
	first    []byte        // what the server is sent first
	timeout  time.Duration // for what is left of it
	patience time.Duration // until the owner is told that it takes long; 0: it was
	failed   bool
}

// patience is [dial.patience] of a new attempt (RFC 8305, 5).
const patience = 250 * time.Millisecond

// FirstMost is the most that a tunnel may send first: what the buffer of any new socket takes.
const FirstMost = 4 << 10

// Dial returns a tunnel that connects to an address, from one of the host unless that is the zero Addr, sends it first, and then relays once [Tunnel.Start] was called. If
// the server does not accept within timeout, or refuses, the owner is told. first must not change before it was told of
// the one or the other. After an error there is no tunnel: the attempt could not even be made, or no time is left for it.
func (p *Pool) Dial(s Spec, from netip.Addr, to netip.AddrPort, first []byte, timeout time.Duration) (*Tunnel, error) {
	if len(first) == 0 || len(first) > FirstMost {
		return nil, errors.ErrUnsupported
	}
	if timeout <= 0 {
		return nil, os.ErrDeadlineExceeded
	}
	fd, err := connect(from, to)
	if err != nil {
		return nil, err
	}
	t := &Tunnel{Spec: s, pool: p, dial: &dial{to: to, first: first, timeout: timeout, patience: patience}}
	t.ends[client] = end{conn: s.Client, fd: -1, out: true}
	t.ends[server] = end{fd: fd, out: true, delays: true}
	return t, nil
}

// connect begins to connect a new socket.
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

// connected sends the first bytes once the server has accepted, and reports whether the tunnel relays now.
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
		return false // the next event comes when there is room
	case err != nil:
		t.unreachable(os.NewSyscallError("write", err))
		return false
	}
	t.begin(n)
	if err := t.loop.watch(t, client); err != nil {
		t.shut(err, true)
		return false
	}
	return true
}

// late is called when an attempt has not succeeded for its patience, or in time.
func (t *Tunnel) late() {
	d := t.dial
	if d.timeout -= d.patience; d.patience == 0 || d.timeout <= 0 {
		t.unreachable(os.ErrDeadlineExceeded)
		return
	}
	d.patience = 0
	t.timer.Reset(d.timeout)
	t.report = t.Owner.Slow
}

// Yield gives an attempt up for a connection to another server, if it has not succeeded: it reports whether the client is the
// caller's from now on. The owner is told nothing, unless it has been or is being told that the attempt has failed.
func (t *Tunnel) Yield() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.dial == nil, t.closed && !t.dial.failed:
		return false
	case !t.closed:
		t.leave()
		t.ends[server].close(true)
	}
	return true
}

// refusal returns why a socket could not connect.
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

// begin makes a connection attempt a tunnel: n of the first bytes were sent.
func (t *Tunnel) begin(n int) {
	first := t.dial.first
	t.dial = nil
	t.wrote(client, n)
	if n < len(first) {
		f := &t.flows[client]
		f.buf = copyBuffers.Get()
		f.held = copy(*f.buf, first[n:])
	}
	t.moved = time.Now()
	t.timer.Reset(min(t.pool.idle, keepAliveAfter, t.pool.LostAfter))
	t.Owner.Opened()
}

// keepAliveAfter is how old a tunnel is when keep-alive is set: few get so old.
const keepAliveAfter = 10 * time.Second

// keepAlive makes the kernel notice an idle server that is gone.
func (t *Tunnel) keepAlive() {
	if e := t.ends[server]; e.conn == nil && !t.kept {
		t.kept = true
		socket.SetKeepAlive(e.fd)
	}
}

// unreachable ends an attempt. The client is left as it was.
func (t *Tunnel) unreachable(err error) {
	t.dial.failed = true
	failed := &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(t.dial.to), Err: err}
	t.leave()
	t.ends[server].close(true)
	t.report = func() { go t.tell(func() { t.Owner.Failed(failed) }) }
}
