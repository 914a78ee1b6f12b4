package boxdial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/namespace"
)

var (
	errOther = errors.New("it is not the box's network namespace any more")
	errOwn   = errors.New("it is the gateway's own network namespace")
)

// pin is a pinned network namespace.
type pin struct {
	path     string
	dev, ino uint64
}

// pinAt returns the pin at a path.
func pinAt(path string) (pin, error) {
	ns, err := os.Open(path)
	if err != nil {
		return pin{}, err
	}
	defer ns.Close()
	p := pin{path: path}
	p.dev, p.ino, err = identify(ns)
	return p, err
}

// identify returns the device and inode of an open network namespace, and rejects the gateway's own.
func identify(ns *os.File) (dev, ino uint64, err error) {
	kind, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return 0, 0, fmt.Errorf("%s is not a network namespace", ns.Name())
	}
	var st, own unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return 0, 0, err
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return 0, 0, err
	}
	if st.Dev == own.Dev && st.Ino == own.Ino {
		return 0, 0, errOwn
	}
	return st.Dev, st.Ino, nil
}

// open opens the namespace, if it is still the same.
func (p pin) open() (*os.File, error) {
	ns, err := os.Open(p.path)
	if err != nil {
		return nil, err
	}
	if dev, ino, err := identify(ns); err != nil || dev != p.dev || ino != p.ino {
		return nil, errors.Join(errOther, err, ns.Close())
	}
	return ns, nil
}

// dial connects to a loopback address of the namespace. A socket belongs to the namespace it was made in, so a thread has
// to enter the namespace only to make the socket, not to wait for the connection.
func (p pin) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	if !to.Addr().IsLoopback() {
		return nil, fmt.Errorf("%v is not a loopback address", to.Addr())
	}
	s, err := p.socket(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("in the box's network namespace: %w", err)
	}
	defer s.Close() // FileConn duplicates the descriptor
	if err := connect(ctx, s, to); err != nil {
		return nil, fmt.Errorf("in the box's network namespace, %v: %w", to, err)
	}
	conn, err := net.FileConn(s)
	if err == nil && isSelfConnected(conn) {
		return nil, fmt.Errorf("in the box's network namespace, %v: %w", to, closeSelfConnected(conn))
	}
	return conn, err
}

// isSelfConnected reports whether a connection is connected to itself. TCP allows that (simultaneous open, RFC 9293, section
// 3.5): if no server listens on a port of the ephemeral range, the kernel may choose that port as the local one.
func isSelfConnected(conn net.Conn) bool {
	near, _ := conn.LocalAddr().(*net.TCPAddr)
	far, _ := conn.RemoteAddr().(*net.TCPAddr)
	return near != nil && far != nil && near.AddrPort() == far.AddrPort()
}

// closeSelfConnected closes a connection to itself, and returns the error of a closed port. It resets the connection, so that no
// TIME_WAIT state prevents a server from listening on the port.
func closeSelfConnected(conn net.Conn) error {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
	return unix.ECONNREFUSED
}

// threads limits the threads in namespaces of boxes.
var threads = make(chan struct{}, 16)

// socket makes a TCP socket inside the namespace.
func (p pin) socket(ctx context.Context, to netip.AddrPort) (*os.File, error) {
	select {
	case threads <- struct{}{}:
		defer func() { <-threads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ns, err := p.open()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd := -1
	err = namespace.OnThread(func() (err error) {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	return startConnect(fd, to)
}

// startConnect starts to connect a socket. The runtime's poller must not see the socket before that, because it would take it
// for a closed one.
func startConnect(fd int, to netip.AddrPort) (*os.File, error) {
	var address unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if to.Addr().Is4() {
		address = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	if err := unix.Connect(fd, address); err != nil && err != unix.EINPROGRESS && err != unix.EINTR {
		return nil, errors.Join(os.NewSyscallError("connect", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "socket in a box"), nil
}

// connect waits until a socket is connected.
func connect(ctx context.Context, s *os.File, to netip.AddrPort) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.SetWriteDeadline(time.Unix(1, 0)) })()
	var state error
	err = raw.Write(func(fd uintptr) bool {
		state = connected(int(fd))
		return !errors.Is(state, unix.EINPROGRESS)
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	}
	return os.NewSyscallError("connect", state)
}

// connected returns the result of a connection attempt, EINPROGRESS while it is pending.
func connected(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if n != 0 {
		return syscall.Errno(n)
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return unix.EINPROGRESS
	}
	return nil
}
