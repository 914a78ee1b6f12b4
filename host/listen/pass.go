package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/dns"
	"boxgate/firewall/network"
	"boxgate/host/handover"
)

// Fixed returns the configuration values that must not change while boxes exist.
func Fixed(cfg config.Config) map[string]string {
	return map[string]string{
		"state_dir": cfg.StateDir, "network.pool_v4": cfg.Network.PoolV4, "network.pool_v6": cfg.Network.PoolV6, "launcher.run_dir": cfg.Launcher.RunDir,
	}
}

// passable is a socket that can be passed to another process. Other descriptors of it may be in use for serving.
type passable struct {
	name      string
	conn      syscall.Conn
	inherited bool // it was inherited
}

// UDPSocket is a socket of the DNS server.
type UDPSocket struct {
	net.PacketConn          // nil: call Serve
	file           *os.File // the same socket
}

// Serve returns the connection for the DNS server. An inherited socket keeps its predecessor's settings until then.
func (u UDPSocket) Serve() (net.PacketConn, error) {
	if u.PacketConn != nil {
		return u.PacketConn, nil
	}
	return net.FilePacketConn(u.file)
}

// Resume restores an inherited socket's normal mode after the predecessor has stopped reading it.
func (u UDPSocket) Resume() error {
	if u.PacketConn != nil {
		return nil
	}
	return dns.ResumeSocket(u.file)
}

// openListener returns the inherited listener called name, or else opens one.
func (l *Sockets) openListener(name string, listen func() (net.Listener, error)) (net.Listener, error) {
	var ln net.Listener
	var err error
	f := l.inherited[name]
	if f != nil {
		delete(l.inherited, name)
		ln, err = net.FileListener(f)
		err = errors.Join(err, f.Close())
	} else {
		ln, err = listen()
	}
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, ln)
	if conn, ok := ln.(syscall.Conn); ok {
		l.passable = append(l.passable, passable{name, conn, f != nil})
	}
	return ln, nil
}

// openUDP opens the sockets that receive the queries to one address, or takes inherited ones.
func (l *Sockets) openUDP(at netip.AddrPort, listen func(at netip.AddrPort) ([]net.PacketConn, error)) error {
	name := func(i int) string { return udpName(at.Addr(), i) }
	had := len(l.DNSUDP)
	for i := 0; l.inherited[name(i)] != nil; i++ {
		f := l.inherited[name(i)]
		if boundTo(f) != at {
			break // another port, which boxes are not redirected to
		}
		delete(l.inherited, name(i))
		l.addUDP(name(i), UDPSocket{file: f})
	}
	if len(l.DNSUDP) > had {
		return nil
	}
	pcs, err := listen(at)
	if err != nil {
		return err
	}
	for i, pc := range pcs {
		l.closers = append(l.closers, pc)
		conn, ok := pc.(*net.UDPConn)
		if !ok {
			continue
		}
		f, err := unpolled(conn)
		if err != nil {
			return err
		}
		l.addUDP(name(i), UDPSocket{pc, f})
	}
	return nil
}

// openLookups opens the sockets that receive the queries to other servers, or takes inherited ones.
func (l *Sockets) openLookups(ctx context.Context, f network.Family, port uint16) error {
	for i := range network.LookupAddrs {
		err := l.openUDP(netip.AddrPortFrom(network.LookupAddr(f, i), port), func(at netip.AddrPort) ([]net.PacketConn, error) {
			pc, err := dns.ListenUDPForAny(ctx, gatewaySocket, at)
			return []net.PacketConn{pc}, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *Sockets) addUDP(name string, u UDPSocket) {
	l.DNSUDP, l.closers, l.passable = append(l.DNSUDP, u), append(l.closers, u.file), append(l.passable, passable{name, u.file, u.PacketConn == nil})
}

// savepoint returns a function that closes everything opened after the call.
func (l *Sockets) savepoint() (rollback func()) {
	all, passable := len(l.closers), len(l.passable)
	return func() {
		for _, c := range l.closers[all:] {
			_ = c.Close()
		}
		for _, p := range l.passable[passable:] {
			l.closedNames = append(l.closedNames, p.name)
		}
		l.closers, l.passable = l.closers[:all], l.passable[:passable]
	}
}

// closeUnused closes inherited sockets that are not used. Those of a running gateway are shut down later, once it has
// stopped.
func (l *Sockets) closeUnused() {
	for name, f := range l.inherited {
		l.closedNames = append(l.closedNames, name)
		if l.replaces {
			l.unconfigured = append(l.unconfigured, f)
			continue
		}
		_ = f.Close()
	}
	l.inherited = nil
}

// inherit opens the configured sockets, using those passed on by the predecessor.
func inherit(ctx context.Context, cfg config.Config, a config.Addresses, h handover.Hello, files map[string]*os.File) (*Sockets, error) {
	return listen(ctx, cfg, a, nil, &Sockets{inherited: files, replaces: true, DNSPort: h.DNSPort, ProxyPort: h.ProxyPort})
}

// Pass sends the hello message with all sockets to another process.
func (l *Sockets) Pass(c *handover.Conn, h handover.Hello) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for _, p := range l.passable {
		fd, err := duplicate(p.conn)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		h.Sockets, fds = append(h.Sockets, p.name), append(fds, fd)
	}
	h.DNSPort, h.ProxyPort = l.DNSPort, l.ProxyPort
	return c.Greet(h, fds)
}

// duplicate returns another descriptor of the socket, without changing its mode.
func duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	ctlErr := raw.Control(func(from uintptr) { fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(ctlErr, err)
}

// unpolled returns the socket as a blocking file, because the DNS server reads it with its own system calls. With a
// non-blocking file the runtime's poller would wake a thread at every query.
func unpolled(c syscall.Conn) (*os.File, error) {
	fd, err := duplicate(c)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "DNS over UDP"), nil
}

// DialAdmin connects to the admin API, whichever process serves it.
func (l *Sockets) DialAdmin(ctx context.Context) (net.Conn, error) {
	err := errors.New("there is no admin API")
	for _, ln := range slices.Backward(l.Admin) { // the Unix socket first
		var c net.Conn
		if c, err = new(net.Dialer).DialContext(ctx, ln.Addr().Network(), ln.Addr().String()); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// CloseQuietly closes this process's descriptors of the listeners. The sockets belong to the successor.
func (l *Sockets) CloseQuietly() {
	for _, c := range l.closers {
		_ = c.Close()
	}
}

// LeaveToSuccessor keeps the admin socket and the lock of the network namespace from being removed when this process closes them:
// they belong to the successor.
func (l *Sockets) LeaveToSuccessor() {
	for _, ln := range l.Admin {
		if u, ok := ln.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
	}
	if l.Lock != nil {
		l.Lock.Leave()
	}
}

// Inherit takes the sockets passed on by a predecessor, and opens the other configured ones.
func Inherit(ctx context.Context, p *handover.Predecessor, cfg config.Config, a config.Addresses) (*Sockets, error) {
	hello, files := p.Hello()
	for key, value := range Fixed(cfg) {
		if was := hello.Fixed[key]; was != value {
			return nil, fmt.Errorf("%s cannot change from %q to %q while the gateway runs: stop it, and start it again", key, was, value)
		}
	}
	return inherit(ctx, cfg, a, hello, files)
}
