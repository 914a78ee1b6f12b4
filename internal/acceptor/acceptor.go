// Package acceptor runs the accept loops of servers ([Loops]), and checks that a listener's accept loop runs ([Listener]).
//
// The kernel completes connections to a listening socket whether or not the program accepts them, so a successful
// connect proves nothing. [Listener.Probe] connects, and waits until Accept has returned that very connection.
package acceptor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
)

// ErrNotAccepted reports that a connection was not accepted in time.
var ErrNotAccepted = errors.New("connections are not accepted")

// Listener is a listener of TCP or Unix sockets that can be tried. Safe for concurrent use, except that one goroutine
// at a time may call Accept.
type Listener struct {
	net.Listener

	trying sync.Mutex   // held during Probe, so that there is one try at a time
	tries  atomic.Int32 // 0: Accept need not compare addresses

	mu       sync.Mutex
	from     string // source address of the try's connection; "" if there is no try
	accepted chan struct{}
}

// New returns ln as a listener that can be tried.
func New(ln net.Listener) *Listener { return &Listener{Listener: ln} }

// Accept implements [net.Listener]. It does not return the connections of [Listener.Probe].
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.tries.Load() == 0 || !l.isTry(c) {
			return c, err
		}
		socket.Reset(c) // no TIME_WAIT
	}
}

// Drain implements [socket.Drainer] if l.Listener does.
func (l *Listener) Drain() { socket.Drain(l.Listener) }

// Probe connects to the listener and returns nil once Accept has received the connection. If ctx ends first, the error
// wraps [ErrNotAccepted]. Call it in the network namespace of the listener.
func (l *Listener) Probe(ctx context.Context) error {
	l.trying.Lock()
	defer l.trying.Unlock()
	accepted := make(chan struct{})
	l.mu.Lock()
	l.accepted = accepted
	l.mu.Unlock()
	l.tries.Add(1)
	defer l.clearTry()
	c, err := l.dial(ctx)
	if err == nil {
		defer socket.Reset(c)
		select {
		case <-accepted:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	select {
	case <-accepted: // even if the reset arrived before connect returned
		return nil
	default:
		return fmt.Errorf("%w: %w", ErrNotAccepted, err)
	}
}

// dial connects to the listener. It announces the source address before the connection can be accepted.
func (l *Listener) dial(ctx context.Context) (net.Conn, error) {
	switch at := l.Addr().(type) {
	case *net.UnixAddr:
		from := &net.UnixAddr{Net: "unix", Name: "@boxgate-" + rand.Text()} // an abstract name, in no directory
		l.setTry(from.Name)
		return (&net.Dialer{LocalAddr: from}).DialContext(ctx, "unix", at.Name)
	case *net.TCPAddr:
		to := reachable(at.AddrPort()) // with its zone, if any
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return l.bind(c, to.Addr()) }}
		return d.DialContext(ctx, "tcp", to.String())
	default:
		return nil, fmt.Errorf("a listener of %s cannot be tried", at.Network())
	}
}

// reachable returns the address at which a listener is reached from its own host.
func reachable(at netip.AddrPort) netip.AddrPort {
	a := at.Addr().Unmap()
	if a.IsUnspecified() { // Go listens on both families at the unspecified address
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(a, at.Port())
}

// bind sets the source address of a socket before it connects. It is the destination address, which is one of the
// host's own; the kernel would choose it too.
func (l *Listener) bind(c syscall.RawConn, to netip.Addr) (err error) {
	ctlErr := c.Control(func(fd uintptr) {
		if err = unix.Bind(int(fd), sockaddr(to)); err != nil {
			err = os.NewSyscallError("bind", err)
			return
		}
		var from unix.Sockaddr
		if from, err = unix.Getsockname(int(fd)); err == nil {
			l.setTry(addrPort(from).String())
		}
	})
	return errors.Join(ctlErr, err)
}

// setTry sets the source address of the try's connection.
func (l *Listener) setTry(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from = from
}

// isTry reports whether c is the connection of the pending try, and completes the try if so.
func (l *Listener) isTry(c net.Conn) bool {
	from := c.RemoteAddr().String()
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		from = plain(tcp.AddrPort()).String()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if from == "" || from != l.from {
		return false
	}
	l.from = ""
	close(l.accepted)
	return true
}

// clearTry ends the try. If Accept later receives the connection of a failed try, it returns it like a stranger's; the
// connection was reset.
func (l *Listener) clearTry() {
	l.setTry("")
	l.tries.Add(-1)
}

// sockaddr returns a socket address with port 0, for which the kernel chooses a port.
func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	sa := &unix.SockaddrInet6{Addr: a.As16()}
	if zone, err := net.InterfaceByName(a.Zone()); err == nil {
		sa.ZoneId = uint32(zone.Index) //nolint:gosec // an index is positive
	}
	return sa
}

// addrPort returns the address and port of a socket address.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)) //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return plain(netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))) //nolint:gosec // a port
	default:
		return netip.AddrPort{}
	}
}

// plain returns an address without a zone, and IPv4-mapped addresses as IPv4.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
