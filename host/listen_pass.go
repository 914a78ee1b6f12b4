package host

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
	"boxgate/host/handover"
)

// passable is a socket that another process can be given. It may be served by other descriptors.
type passable struct {
	name string
	conn syscall.Conn
	had  bool // it was inherited
}

// udpSocket is a socket of the DNS server.
type udpSocket struct {
	net.PacketConn          // nil: file is to be served
	file           *os.File // the same socket
}

// serve returns what the DNS server takes over. An inherited socket stays as its process left it until then.
func (u udpSocket) serve() (net.PacketConn, error) {
	if u.PacketConn != nil {
		return u.PacketConn, nil
	}
	return net.FilePacketConn(u.file)
}

// resume makes an inherited socket usable in the ordinary way, once the other process has left it.
func (u udpSocket) resume() error {
	if u.PacketConn != nil {
		return nil
	}
	return dns.Resume(u.file)
}

// open returns the inherited listener of that name, or opens one.
func (l *Listeners) open(name string, listen func() (net.Listener, error)) (net.Listener, error) {
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
	l.all = append(l.all, ln)
	if conn, ok := ln.(syscall.Conn); ok {
		l.passable = append(l.passable, passable{name, conn, f != nil})
	}
	return ln, nil
}

// openUDP opens the sockets that together receive what is sent to one address, or takes those that were inherited.
func (l *Listeners) openUDP(ctx context.Context, at netip.AddrPort) error {
	name := func(i int) string { return udpName(at.Addr(), i) }
	had := len(l.dnsUDP)
	for i := 0; l.inherited[name(i)] != nil; i++ {
		f := l.inherited[name(i)]
		if boundTo(f) != at {
			break // a socket of another port, which is led nowhere
		}
		delete(l.inherited, name(i))
		l.keepUDP(name(i), udpSocket{file: f})
	}
	if len(l.dnsUDP) > had {
		return nil
	}
	pcs, err := dns.ListenUDP(ctx, gatewaySocket, at)
	if err != nil {
		return err
	}
	for i, pc := range pcs {
		l.all = append(l.all, pc)
		conn, ok := pc.(*net.UDPConn)
		if !ok {
			continue
		}
		f, err := unpolled(conn)
		if err != nil {
			return err
		}
		l.keepUDP(name(i), udpSocket{pc, f})
	}
	return nil
}

func (l *Listeners) keepUDP(name string, u udpSocket) {
	l.dnsUDP, l.all, l.passable = append(l.dnsUDP, u), append(l.all, u.file), append(l.passable, passable{name, u.file, u.PacketConn == nil})
}

// attempt returns what closes everything that is opened after the call.
func (l *Listeners) attempt() (takeBack func()) {
	all, passable := len(l.all), len(l.passable)
	return func() {
		for _, c := range l.all[all:] {
			_ = c.Close()
		}
		for _, p := range l.passable[passable:] {
			l.gone = append(l.gone, p.name)
		}
		l.all, l.passable = l.all[:all], l.passable[:passable]
	}
}

// closeUnused closes what was inherited and is not used. What the gateway that runs still has is ended when that has stopped.
func (l *Listeners) closeUnused() {
	for name, f := range l.inherited {
		l.gone = append(l.gone, name)
		if l.replaces {
			l.unasked = append(l.unasked, f)
			continue
		}
		_ = f.Close()
	}
	l.inherited = nil
}

// inherit opens the sockets that the configuration asks for, or takes those that were passed on.
func inherit(ctx context.Context, cfg config.Config, a config.Addresses, h handover.Hello, files map[string]*os.File) (*Listeners, error) {
	return listen(ctx, cfg, a, nil, &Listeners{inherited: files, replaces: true, dnsPort: h.DNSPort, proxyPort: h.ProxyPort})
}

// pass greets another process with all sockets.
func (l *Listeners) pass(c *handover.Conn, h handover.Hello) error {
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
	h.DNSPort, h.ProxyPort = l.dnsPort, l.proxyPort
	return c.Greet(h, fds)
}

// duplicate returns a descriptor of the same socket, and changes nothing about it.
func duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	ctlErr := raw.Control(func(from uintptr) { fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(ctlErr, err)
}

// unpolled returns the same socket as a file that blocks, as the DNS server has it, which reads it by system calls of its
// own. With a file that does not, the runtime's poller would wake a thread at every query.
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

// dialAdmin connects to the admin API, whichever process answers it.
func (l *Listeners) dialAdmin(ctx context.Context) (net.Conn, error) {
	err := errors.New("there is no admin API")
	for _, ln := range slices.Backward(l.admin) { // the Unix socket first
		var c net.Conn
		if c, err = new(net.Dialer).DialContext(ctx, ln.Addr().Network(), ln.Addr().String()); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// closeQuietly closes what is left of the listeners. Their sockets are another process's.
func (l *Listeners) closeQuietly() {
	for _, c := range l.all {
		_ = c.Close()
	}
}

// leave makes the admin socket and the lock of the network namespace outlive their being closed here: they are another process's.
func (l *Listeners) leave() {
	for _, ln := range l.admin {
		if u, ok := ln.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
	}
	if l.lock != nil {
		l.lock.Leave()
	}
}
