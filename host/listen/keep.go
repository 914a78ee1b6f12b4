package listen

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/firewall/network"
	"boxgate/host/systemd"
)

// adoptKept takes over the sockets that the service manager kept since an earlier run, including the traffic queued in
// them, and so keeps the ports that boxes are redirected to. It drops sockets of other network namespaces and sockets
// that were shut down.
func (l *Sockets) adoptKept(files map[string]*os.File) {
	l.inherited = map[string]*os.File{}
	own := namespaceCookie(nil)
	for name, f := range files {
		if own == 0 || namespaceCookie(f) != own || stoppedListening(f) {
			l.closedNames = append(l.closedNames, name)
			_ = f.Close()
			continue
		}
		l.inherited[name] = f
	}
}

// closeUnconfigured closes the sockets of an earlier run that are not configured, before others are opened, which may need their
// ports. No other process serves them, because the lock of the network namespace is held.
func (l *Sockets) closeUnconfigured(cfg config.Config, a config.Addresses) {
	if l.replaces {
		return
	}
	for name, f := range l.inherited {
		if !isConfigured(cfg, a, name) {
			delete(l.inherited, name)
			l.closedNames = append(l.closedNames, name)
			shutDown(f)
		}
	}
}

// isConfigured reports whether the configuration has an IP socket called name.
func isConfigured(cfg config.Config, a config.Addresses, name string) bool {
	for _, f := range fronts(cfg) {
		if f.address != "" && name == f.key+" "+f.address {
			return true
		}
	}
	for _, g := range []netip.Addr{a.GatewayV4, a.GatewayV6} {
		explicit := explicitKey + " " + netip.AddrPortFrom(g, ExplicitPort).String()
		if name == explicit || name == dnsName(g) || strings.HasPrefix(name, udpPrefix(g)) {
			return true
		}
	}
	for _, f := range network.Families {
		for i := range network.LookupAddrs {
			if strings.HasPrefix(name, udpPrefix(network.LookupAddr(f, i))) {
				return true
			}
		}
	}
	return name == proxyName(loopback[0]) || name == proxyName(loopback[1])
}

// shutDown shuts a socket down before closing it, so that it stops listening although the service manager still has a
// descriptor of it.
func shutDown(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil && boundTo(f).IsValid() {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	_ = f.Close()
}

// stoppedListening reports whether a socket is a TCP socket that does not listen.
func stoppedListening(f *os.File) (ended bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	_ = raw.Control(func(fd uintptr) {
		kind, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
		listens, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		ended = kind == unix.SOCK_STREAM && listens == 0
	})
	return ended
}

// resumeKept makes the DNS server's sockets of an earlier run usable.
func (l *Sockets) resumeKept() error {
	for _, u := range l.DNSUDP {
		if err := u.Resume(); err != nil {
			return err
		}
	}
	return nil
}

// Keep makes the service manager keep the gateway's sockets, and no others. Unix sockets and the lock are not kept: each
// run opens them again, and the lock must end with the process. Sockets of a replaced gateway that are no longer
// configured are closed.
func (l *Sockets) Keep(log *zap.Logger) {
	for _, f := range l.unconfigured {
		shutDown(f)
	}
	l.unconfigured = nil
	if l.apart {
		return
	}
	err := l.sendKept()
	if errors.Is(err, syscall.ECONNREFUSED) { // a manager that only listens for READY
		log.Debug("the service manager does not keep the sockets for the next start", zap.Error(err))
	} else if err != nil {
		log.Warn("the service manager does not keep all sockets for the next start", zap.Error(err))
	}
}

// sendKept sends the sockets to keep to the service manager.
func (l *Sockets) sendKept() error {
	drop := l.closedNames
	for _, p := range l.passable {
		if l.replaces && !p.inherited && boundTo(p.conn).IsValid() { // the manager may keep a socket of that name which the earlier gateway did not pass on
			drop = append(drop, p.name)
		}
	}
	for _, name := range drop {
		if err := systemd.Drop(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	l.closedNames = nil
	for _, p := range l.passable {
		if !boundTo(p.conn).IsValid() {
			continue
		}
		if err := systemd.Keep(p.name, p.conn); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// keptPort returns the port of an inherited socket, 0 if it does not exist.
func (l *Sockets) keptPort(name string) uint16 {
	f := l.inherited[name]
	if f == nil {
		return 0
	}
	return boundTo(f).Port()
}

// boundTo returns the address of an IP socket, or the zero value.
func boundTo(c syscall.Conn) (at netip.AddrPort) {
	raw, err := c.SyscallConn()
	if err != nil {
		return at
	}
	_ = raw.Control(func(fd uintptr) {
		sa, err := unix.Getsockname(int(fd))
		if err != nil { // not a socket
			return
		}
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			at = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
		case *unix.SockaddrInet6:
			at = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
		}
	})
	return at
}

// namespaceCookie returns the cookie of the network namespace of a socket, or of this process for nil. It is 0 if
// unknown, e.g. before Linux 5.14.
func namespaceCookie(f *os.File) (cookie uint64) {
	if f == nil {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0
		}
		f = os.NewFile(uintptr(fd), "probe")
		defer f.Close()
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	if err != nil {
		return 0
	}
	return cookie
}
