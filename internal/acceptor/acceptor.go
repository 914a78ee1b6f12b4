// Package acceptor tells whether a listener's accept loop runs.
//
// The kernel completes connections to a listening socket whether or not the program accepts them, so a successful connect proves
// nothing. [Listener.Try] connects, and waits until Accept has returned that very connection.
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

// ErrNotAccepted is a connection that was not accepted in time.
var ErrNotAccepted = errors.New("connections are not accepted")

// Listener is a listener of TCP or Unix sockets that can be tried. Safe for concurrent use, but for Accept, which one goroutine
// calls.
type Listener struct {
	net.Listener

	trying sync.Mutex   // held by the one try that there is at a time
	tries  atomic.Int32 // 0: Accept need not look at addresses

	mu       sync.Mutex
	from     string // the address of the connection of the try; "": there is none
	accepted chan struct{}
}

// New returns ln as a listener that can be tried.
func New(ln net.Listener) *Listener { return &Listener{Listener: ln} }

// Accept implements [net.Listener]. It does not return the connections of [Listener.Try].
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.tries.Load() == 0 || !l.isTry(c) {
			return c, err
		}
		socket.Reset(c) // no TIME_WAIT
	}
}

// Drain implements [socket.Drainer] if the listener below does.
func (l *Listener) Drain() { socket.Drain(l.Listener) }

// Try connects to the listener and returns nil once Accept has taken the connection, or an error that wraps [ErrNotAccepted] if
// ctx ends before. Call it in the network namespace of the listener.
func (l *Listener) Try(ctx context.Context) error {
	l.trying.Lock()
	defer l.trying.Unlock()
	accepted := make(chan struct{})
	l.mu.Lock()
	l.accepted = accepted
	l.mu.Unlock()
	l.tries.Add(1)
	defer l.end()
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
	case <-accepted: // even if the reset that follows has overtaken the connect
		return nil
	default:
		return fmt.Errorf("%w: %w", ErrNotAccepted, err)
	}
}

// dial connects to the listener. It announces the source address before the connection can be accepted.
func (l *Listener) dial(ctx context.Context) (net.Conn, error) {
	switch at := l.Addr().(type) {
	case *net.UnixAddr:
		from := &net.UnixAddr{Net: "unix", Name: "@boxgate-" + rand.Text()} // a name in no directory
		l.expect(from.Name)
		return (&net.Dialer{LocalAddr: from}).DialContext(ctx, "unix", at.Name)
	case *net.TCPAddr:
		to := reachable(at.AddrPort()) // with its zone, if it has one
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return l.bind(c, to.Addr()) }}
		return d.DialContext(ctx, "tcp", to.String())
	default:
		return nil, fmt.Errorf("a listener of %s cannot be tried", at.Network())
	}
}

// reachable returns an address at which a listener is reached from its own host.
func reachable(at netip.AddrPort) netip.AddrPort {
	a := at.Addr().Unmap()
	if a.IsUnspecified() { // Go listens to both families at such an address
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(a, at.Port())
}

// bind gives a socket its source address before it connects: the address it connects to, which the kernel would choose as well, as
// that is the host's own.
func (l *Listener) bind(c syscall.RawConn, to netip.Addr) (err error) {
	ctlErr := c.Control(func(fd uintptr) {
		if err = unix.Bind(int(fd), sockaddr(to)); err != nil {
			err = os.NewSyscallError("bind", err)
			return
		}
		var from unix.Sockaddr
		if from, err = unix.Getsockname(int(fd)); err == nil {
			l.expect(addrPort(from).String())
		}
	})
	return errors.Join(ctlErr, err)
}

// expect sets the source address of the try's connection.
func (l *Listener) expect(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from = from
}

// isTry reports whether a connection is that of the pending try, and completes the try if so.
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

// end forgets the try. A connection of a failed try that Accept takes later is handled as a stranger's; it was reset.
func (l *Listener) end() {
	l.expect("")
	l.tries.Add(-1)
}

// sockaddr returns an address with a port that the kernel chooses.
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

// addrPort is the address of a socket.
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

// plain is an address without a zone, and without IPv6 around IPv4.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
