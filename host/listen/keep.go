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
	"boxgate/host/systemd"
)

// takeKept has the sockets used that the service manager has kept since an earlier run: what arrived meanwhile waits in them. The
// ports that boxes are led to stay those of that run. Sockets of another network namespace are not used, nor ones that were ended.
func (l *Sockets) takeKept(files map[string]*os.File) {
	l.inherited = map[string]*os.File{}
	own := namespaceCookie(nil)
	for name, f := range files {
		if own == 0 || namespaceCookie(f) != own || ended(f) {
			l.gone = append(l.gone, name)
			_ = f.Close()
			continue
		}
		l.inherited[name] = f
	}
}

// endUnasked ends the sockets of an earlier run that the configuration does not ask for, before others are opened, which may need
// their ports. The lock of the network namespace is held: nobody else serves them.
func (l *Sockets) endUnasked(cfg config.Config, a config.Addresses) {
	if l.replaces {
		return
	}
	for name, f := range l.inherited {
		if !asksFor(cfg, a, name) {
			delete(l.inherited, name)
			l.gone = append(l.gone, name)
			end(f)
		}
	}
}

// asksFor reports whether a configuration asks for an IP socket of that name.
func asksFor(cfg config.Config, a config.Addresses, name string) bool {
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
	return name == proxyName(loopback[0]) || name == proxyName(loopback[1])
}

// end closes a socket, and has it listen no longer although others have it as well: the service manager lets go of it only when it
// gets to that.
func end(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil && boundTo(f).IsValid() {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	_ = f.Close()
}

// ended reports whether a socket is a TCP listener that listens no longer.
func ended(f *os.File) (ended bool) {
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

// resumeKept makes the DNS server's sockets usable that an earlier run has left.
func (l *Sockets) resumeKept() error {
	for _, u := range l.DNSUDP {
		if err := u.Resume(); err != nil {
			return err
		}
	}
	return nil
}

// Keep has the service manager keep the sockets that the gateway has, and no others. Those that are files are opened anew by each
// run, and so is the lock, which must end with the process. What a gateway that was replaced has served, and nobody asks for now, is
// ended.
func (l *Sockets) Keep(log *zap.Logger) {
	for _, f := range l.unasked {
		end(f)
	}
	l.unasked = nil
	if l.apart {
		return
	}
	err := l.tellKept()
	if errors.Is(err, syscall.ECONNREFUSED) { // a manager that wanted to know no more than that the gateway is ready
		log.Debug("nobody keeps the sockets for the next start", zap.Error(err))
	} else if err != nil {
		log.Warn("the service manager does not keep all sockets for the next start", zap.Error(err))
	}
}

// tellKept tells the service manager what it is to keep.
func (l *Sockets) tellKept() error {
	drop := l.gone
	for _, p := range l.passable {
		if l.replaces && !p.had && boundTo(p.conn).IsValid() { // it may have one of that name that the gateway before has not been told of
			drop = append(drop, p.name)
		}
	}
	for _, name := range drop {
		if err := systemd.Drop(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	l.gone = nil
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

// keptPort is the port of an inherited socket, 0 if there is none of that name.
func (l *Sockets) keptPort(name string) uint16 {
	f := l.inherited[name]
	if f == nil {
		return 0
	}
	return boundTo(f).Port()
}

// boundTo is the address of an IP socket, or the zero value.
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

// namespaceCookie identifies the network namespace of a socket, or of this process; 0: not known, as before Linux 5.14.
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
