package host

import (
	"net/netip"
	"os"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/host/systemd"
)

// takeKept has the sockets used that the service manager has kept since an earlier run: what arrived meanwhile waits in them. The
// ports that boxes are led to stay those of that run. Sockets of another network namespace are not used.
func (l *Listeners) takeKept(files map[string]*os.File) {
	l.inherited = map[string]*os.File{}
	own := namespaceCookie(nil)
	for name, f := range files {
		if own == 0 || namespaceCookie(f) != own {
			l.gone = append(l.gone, name)
			_ = f.Close()
			continue
		}
		l.inherited[name] = f
	}
}

// resumeKept makes the DNS server's sockets usable that an earlier run has left.
func (l *Listeners) resumeKept() error {
	for _, u := range l.dnsUDP {
		if err := u.resume(); err != nil {
			return err
		}
	}
	return nil
}

// keep has the service manager keep the sockets that the gateway has, and no others. Those that are files are opened anew by each
// run, and so is the lock, which must end with the process.
func (l *Listeners) keep(log *zap.Logger) {
	if l.apart {
		return
	}
	for _, name := range l.gone {
		if err := systemd.Drop(name); err != nil {
			log.Warn("systemd was not told that a socket is closed", zap.String("socket", name), zap.Error(err))
		}
	}
	l.gone = nil
	for _, p := range l.passable {
		if !boundTo(p.conn).IsValid() {
			continue
		}
		if err := systemd.Keep(p.name, p.conn); err != nil {
			log.Warn("systemd does not keep a socket for the next start", zap.String("socket", p.name), zap.Error(err))
		}
	}
}

// keptPort is the port of an inherited socket, 0 if there is none of that name.
func (l *Listeners) keptPort(name string) uint16 {
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
