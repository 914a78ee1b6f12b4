// Package listen opens the sockets of a gateway, all of them or none ([Open]). It also hands them to the service manager,
// which keeps them for the next run, and passes them to a successor process, which picks them up with [Inherit].
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/dns"
	"boxgate/firewall"
	"boxgate/firewall/network"
	"boxgate/host/netns"
	"boxgate/host/nslock"
	"boxgate/proxy"
	"boxgate/selftest"
)

// Sockets are all sockets of a gateway. They are opened before any other step, so that a port conflict is found while
// no rollback is needed.
type Sockets struct {
	Admin       []net.Listener // Unix socket and TCP
	Metrics     net.Listener   // nil: disabled
	HTTPS, HTTP net.Listener   // nil: disabled
	Remote      net.Listener   // nil: disabled
	SSH         net.Listener   // nil: disabled
	Fleet       net.Listener   // for other hosts of the fleet; nil: disabled
	DNSTCP      []net.Listener
	DNSUDP      []UDPSocket
	Transparent []net.Listener
	Explicit    []net.Listener

	Lock      *nslock.Lock      // of the network namespace; nil if the namespace belongs to this run only
	Namespace *net.UnixListener // for commands; nil without a lock

	DNSPort, ProxyPort uint16
	closers            []interface{ Close() error }

	passable     []passable          // sockets that can be passed to another process
	inherited    map[string]*os.File // sockets received from another process and not used yet
	replaces     bool                // the sockets came from a running gateway, which this process replaces
	closedNames  []string            // names of inherited sockets that are closed
	unconfigured []*os.File          // inherited from a running gateway and not configured
	apart        bool                // boxes have a network namespace of their own
}

// ExplicitPort is the well-known port of the explicit proxy on the gateway addresses.
const ExplicitPort = 3128

// explicitKey is the name prefix of the explicit proxy's listeners.
const explicitKey = "the explicit proxy"

// Open opens every configured socket, or none. Sockets that boxes are redirected to are opened in the namespace boxes,
// nil for the gateway's own. Sockets of an earlier run, kept, are reused where they match the configuration; Open owns
// all of them, and closes the others. See [systemd.Kept].
func Open(ctx context.Context, cfg config.Config, a config.Addresses, boxes *netns.Net, kept map[string]*os.File) (*Sockets, error) {
	l := &Sockets{apart: boxes != nil}
	l.adoptKept(kept)
	l.DNSPort, l.ProxyPort = l.keptPort(dnsName(a.GatewayV4)), l.keptPort(proxyName(loopback[0]))
	l, err := listen(ctx, cfg, a, boxes, l)
	if err != nil {
		return nil, err
	}
	if err := l.resumeKept(); err != nil {
		l.Close()
		return nil, fmt.Errorf("DNS: %w", err)
	}
	return l, nil
}

// listen opens the configured sockets that were not inherited.
func listen(ctx context.Context, cfg config.Config, a config.Addresses, boxes *netns.Net, l *Sockets) (*Sockets, error) {
	if boxes == nil { // a separate namespace is new, so no other process uses it
		if err := l.claimNamespace(); err != nil {
			l.Close()
			return nil, err
		}
		l.closeUnconfigured(cfg, a)
	}
	egress := boxes.Do(func() error { return l.openEgress(ctx, a) })
	err := errors.Join(l.openAdmin(ctx, cfg.Admin), l.openFront(ctx, cfg), egress)
	if err != nil {
		l.Close()
		return nil, err
	}
	l.closeUnused()
	return l, nil
}

// The names under which the lock of the network namespace and the control socket are passed to another process.
const (
	namespaceLock   = "lock of the network namespace"
	namespaceSocket = "socket of the network namespace"
)

// errSecondGateway refuses to start a second gateway in a network namespace. Only one is possible, whatever the state
// directory and the addresses, because the names of its nftables table and its routing rules are fixed.
var errSecondGateway = errors.New("another gateway runs in this network namespace, whatever its state directory and addresses: stop it, or run this one in a namespace of its own (ip netns exec)")

// claimNamespace locks the network namespace and opens the control socket. A second gateway would replace the rules of the
// first.
func (l *Sockets) claimNamespace() error {
	if err := l.lockNamespace(); errors.Is(err, nslock.ErrTaken) {
		return errSecondGateway
	} else if err != nil {
		return fmt.Errorf("taking the network namespace: %w", err)
	}
	ln, err := l.openListener(namespaceSocket, func() (net.Listener, error) { return l.Lock.Listen() })
	if err != nil {
		return fmt.Errorf("taking the network namespace: %w", err)
	}
	l.Namespace, _ = ln.(*net.UnixListener)
	return nil
}

// lockNamespace takes the lock, or the one inherited from the predecessor.
func (l *Sockets) lockNamespace() (err error) {
	if f := l.inherited[namespaceLock]; f != nil {
		delete(l.inherited, namespaceLock)
		l.Lock, err = nslock.Inherit(f)
	} else {
		l.Lock, err = awaitLock(l.replaces)
	}
	if err == nil {
		l.closers, l.passable = append(l.closers, l.Lock), append(l.passable, passable{name: namespaceLock, conn: l.Lock})
	}
	return err
}

// lockPatience is how long the lock of an ended gateway may remain held, by a child process between fork and exec.
const lockPatience = time.Second

// awaitLock takes the lock. A gateway in another mount namespace has another lock file; it is detected by its kernel
// state, unless this process is to replace it.
func awaitLock(replaces bool) (*nslock.Lock, error) {
	for until := time.Now().Add(lockPatience); ; time.Sleep(10 * time.Millisecond) {
		lock, err := nslock.Acquire()
		if err == nil && !replaces {
			if err = firewall.CheckNotRunning(); err != nil {
				lock.Remove()
				_ = lock.Close()
			}
		}
		if err == nil {
			return lock, nil
		}
		if errors.Is(err, firewall.ErrRunning) {
			err = nslock.ErrTaken
		}
		if !errors.Is(err, nslock.ErrTaken) || time.Now().After(until) {
			return nil, err
		}
	}
}

// Close closes all sockets.
func (l *Sockets) Close() {
	if l.Lock != nil {
		l.Lock.Remove()
	}
	for _, c := range l.closers {
		c.Close()
	}
	l.closeUnused()
	for _, f := range l.unconfigured {
		_ = f.Close()
	}
	l.unconfigured = nil
}

// tcp opens one TCP listener. key is the configuration key of the address.
func (l *Sockets) tcp(ctx context.Context, lc net.ListenConfig, key, address string) (net.Listener, error) {
	ln, err := l.openListener(key+" "+address, func() (net.Listener, error) { return lc.Listen(ctx, "tcp", address) })
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %s is in use by another program, or kept by systemd for a boxgate.service that runs or restarts; stop it or set another address", key, address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s: this machine has no address %s; set another address", key, address)
	case err != nil:
		return nil, fmt.Errorf("%s: cannot listen on %s: %w", key, address, err)
	}
	return ln, nil
}

func (l *Sockets) openAdmin(ctx context.Context, c config.Admin) error {
	var errs []error
	if c.Listen != "" {
		ln, err := l.tcp(ctx, net.ListenConfig{}, adminKey, c.Listen)
		if err != nil {
			errs = append(errs, err)
		} else {
			l.Admin = append(l.Admin, ln)
		}
	}
	if c.Socket != "" {
		ln, err := l.openListener("admin.socket "+c.Socket, func() (net.Listener, error) { return listenSocket(c.Socket) })
		if err != nil {
			errs = append(errs, fmt.Errorf("admin.socket: %w", err))
		} else {
			l.Admin = append(l.Admin, ln)
			errs = append(errs, permitGroup(c))
		}
	}
	return errors.Join(errs...)
}

// CheckSocket checks whether the gateway could open its Unix socket, without changing anything.
func CheckSocket(path string) error {
	if err := checkOldSocket(path); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	for errors.Is(err, os.ErrNotExist) && dir != "/" { // the gateway would create it
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory; set another path", dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s cannot be written to: %w", dir, err)
	}
	return nil
}

// checkOldSocket refuses a path that is in use by a running gateway or is not a socket.
func checkOldSocket(path string) error {
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return fmt.Errorf("another gateway answers on %s; stop it or set another path", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket; remove it or set another path", path)
	}
	return nil
}

// listenSocket opens a Unix socket with mode 0600. It removes the socket of a killed gateway; one that accepts
// connections belongs to a running gateway.
func listenSocket(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := checkOldSocket(path); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	old := unix.Umask(0o177)
	ln, err := net.Listen("unix", path)
	unix.Umask(old)
	return ln, err
}

// GroupID returns the ID of the group of admin.group, given by name or number. It returns -1 if the key is empty.
func GroupID(c config.Admin) (int, error) {
	if c.Group == "" {
		return -1, nil
	}
	found, err := user.LookupGroup(c.Group)
	if err != nil {
		if found, err = user.LookupGroupId(c.Group); err != nil {
			return -1, fmt.Errorf("admin.group: this host has no group %q; create it (groupadd --system %[1]s), or remove the key", c.Group)
		}
	}
	gid, err := strconv.Atoi(found.Gid)
	if err == nil && gid == overflowGroup {
		return -1, fmt.Errorf("admin.group: group %d is also that of processes in containers whose own group this host does not have; use another group", gid)
	}
	return gid, err
}

// overflowGroup is the group in the credentials of a process whose group is not mapped into the gateway's user namespace, usually
// called nogroup (the default of /proc/sys/kernel/overflowgid).
const overflowGroup = 65534

// permitGroup sets group and mode of the socket: also of an inherited one, since admin.group may have changed. It follows no
// symbolic link, and never widens the mode before the group is set.
func permitGroup(c config.Admin) error {
	gid, err := GroupID(c)
	if err != nil {
		return err
	}
	fd, err := unix.Open(c.Socket, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	var is unix.Stat_t
	if err == nil {
		defer unix.Close(fd)
		err = unix.Fstat(fd, &is)
	}
	switch {
	case gid < 0 && (err != nil || is.Mode&0o077 == 0):
		return nil
	case err != nil || is.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("admin.group: %s is not the gateway's socket any more; restart the gateway", c.Socket)
	}
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := os.Chmod(path, 0o600); err != nil {
		return fmt.Errorf("admin.group: %w", err)
	}
	if gid < 0 {
		return unix.Fchownat(fd, "", -1, os.Getegid(), unix.AT_EMPTY_PATH)
	}
	if err := errors.Join(unix.Fchownat(fd, "", -1, gid, unix.AT_EMPTY_PATH), os.Chmod(path, 0o660)); err != nil {
		return fmt.Errorf("admin.group: %w", err)
	}
	return nil
}

// Redirects reports whether plain HTTP redirects to HTTPS. On a loopback address it serves the public URLs instead.
func (l *Sockets) Redirects() bool {
	return l.HTTP != nil && l.HTTPS != nil && !l.HTTP.Addr().(*net.TCPAddr).IP.IsLoopback()
}

// openFront opens the listeners for visitors of public URLs and for Prometheus.
func (l *Sockets) openFront(ctx context.Context, cfg config.Config) error {
	var errs []error
	for _, f := range fronts(cfg) {
		if f.address == "" || f.to == nil {
			continue
		}
		ln, err := l.tcp(ctx, net.ListenConfig{}, f.key, f.address)
		if err != nil {
			errs = append(errs, err)
		} else {
			*f.to(l) = ln
		}
	}
	return errors.Join(errs...)
}

// front is a listener for clients outside the boxes.
type front struct {
	key, address string
	to           func(*Sockets) *net.Listener // nil: admin
}

const adminKey = "admin.listen"

// fronts returns the listeners of a configuration. A listener without an address is disabled.
func fronts(cfg config.Config) []front {
	return []front{
		{adminKey, cfg.Admin.Listen, nil},
		{"metrics.listen", cfg.Metrics.Listen, func(l *Sockets) *net.Listener { return &l.Metrics }},
		{"ingress.https", cfg.Ingress.HTTPS, func(l *Sockets) *net.Listener { return &l.HTTPS }},
		{"ingress.http", cfg.Ingress.HTTP, func(l *Sockets) *net.Listener { return &l.HTTP }},
		{"remote.listen", cfg.Remote.Listen, func(l *Sockets) *net.Listener { return &l.Remote }},
		{"ssh.listen", cfg.SSH.Listen, func(l *Sockets) *net.Listener { return &l.SSH }},
		{"fleet.advertise", cfg.Fleet.Advertise, func(l *Sockets) *net.Listener { return &l.Fleet }},
	}
}

// openEgress opens the sockets that boxes are redirected to. The host does not have the gateway addresses yet; the
// firewall adds them.
func (l *Sockets) openEgress(ctx context.Context, a config.Addresses) error {
	gateways := []netip.Addr{a.GatewayV4, a.GatewayV6}
	for _, g := range gateways {
		ln, err := l.tcp(ctx, gatewaySocket, explicitKey, netip.AddrPortFrom(g, ExplicitPort).String())
		if err != nil {
			return err
		}
		l.Explicit = append(l.Explicit, ln)
	}
	if err := samePort(func() (uint16, error) { return l.openDNS(ctx, gateways) }, &l.DNSPort); err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	return samePort(func() (uint16, error) { return l.openTransparent(ctx, loopback[:]) }, &l.ProxyPort)
}

// loopback has the addresses of the transparent proxy.
var loopback = [...]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// The names of the listeners of the DNS server and the transparent proxy at an address.
func dnsName(at netip.Addr) string   { return "DNS over TCP " + at.String() }
func proxyName(at netip.Addr) string { return "proxy " + at.String() }

// udpName is the name of the i-th socket that receives queries at an address.
func udpName(at netip.Addr, i int) string { return fmt.Sprintf("%s%d", udpPrefix(at), i) }

func udpPrefix(at netip.Addr) string { return fmt.Sprintf("DNS over UDP %v ", at) }

// samePort calls open until it finds a port that is free in both address families.
func samePort(open func() (uint16, error), port *uint16) error {
	var err error
	for range 20 {
		if *port, err = open(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no port is free in both address families: %w", err)
}

func (l *Sockets) openDNS(ctx context.Context, addrs []netip.Addr) (uint16, error) {
	port := l.DNSPort // 0: the first listener picks one
	rollback := l.savepoint()
	for _, a := range addrs {
		ln, err := l.openListener(dnsName(a), func() (net.Listener, error) {
			return gatewaySocket.Listen(ctx, "tcp", netip.AddrPortFrom(a, port).String())
		})
		if err == nil {
			l.DNSTCP = append(l.DNSTCP, ln)
			port, err = checkPort(port, ln)
		}
		if err == nil {
			err = l.openUDP(netip.AddrPortFrom(a, port), func(at netip.AddrPort) ([]net.PacketConn, error) {
				return dns.ListenUDP(ctx, gatewaySocket, at)
			})
		}
		if err == nil {
			err = l.openLookups(ctx, network.FamilyOf(a), port)
		}
		if err != nil {
			rollback()
			l.DNSTCP, l.DNSUDP = nil, nil
			return 0, err
		}
	}
	return port, nil
}

// checkPort returns the port of a listener. It must be the given one unless that is 0; an inherited listener may have another.
func checkPort(port uint16, ln net.Listener) (uint16, error) {
	if has := PortOf(ln); port == 0 || has == port {
		return has, nil
	}
	return 0, fmt.Errorf("%v has another port than %d", ln.Addr(), port)
}

func (l *Sockets) openTransparent(ctx context.Context, addrs []netip.Addr) (uint16, error) {
	port := l.ProxyPort // 0: the first listener picks one
	rollback := l.savepoint()
	for _, a := range addrs {
		ln, err := l.openListener(proxyName(a), func() (net.Listener, error) {
			return proxy.ListenTransparent(ctx, netip.AddrPortFrom(a, port).String())
		})
		if err == nil {
			l.Transparent = append(l.Transparent, ln)
			port, err = checkPort(port, ln)
		}
		if err != nil {
			rollback()
			l.Transparent = nil
			return 0, err
		}
	}
	return port, nil
}

// gatewaySocket listens on an address that the host does not have yet. IP_TRANSPARENT also identifies the gateway's
// sockets to the kernel rules, so that boxes cannot reach another program that took the ports while the gateway was down.
var gatewaySocket = net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
	var err error
	ctlErr := c.Control(func(fd uintptr) {
		if network == "tcp6" || network == "udp6" {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
			return
		}
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	})
	return errors.Join(ctlErr, err)
}}

// PortOf returns the port of a TCP listener.
func PortOf(ln net.Listener) uint16 { return ln.Addr().(*net.TCPAddr).AddrPort().Port() }

// PortOfHTTPS returns the port of the HTTPS listener of public URLs, 0 without one.
func (l *Sockets) PortOfHTTPS() uint16 {
	if l.HTTPS == nil {
		return 0
	}
	return PortOf(l.HTTPS)
}

// PortOfHTTP returns the port of the HTTP listener of public URLs, 0 without one.
func (l *Sockets) PortOfHTTP() uint16 {
	if l.HTTP == nil {
		return 0
	}
	return PortOf(l.HTTP)
}

// Bound returns the addresses of all IP sockets of the gateway.
func (l *Sockets) Bound() (list []netip.AddrPort) {
	for _, p := range l.passable {
		if at := boundTo(p.conn); at.IsValid() {
			list = append(list, at)
		}
	}
	return list
}

// ClosedToBoxes returns the ports of the gateway that boxes must not reach.
func (l *Sockets) ClosedToBoxes() []selftest.Port {
	var ports []selftest.Port
	add := func(name string, ln net.Listener) {
		if ln == nil {
			return
		}
		if _, isTCP := ln.Addr().(*net.TCPAddr); isTCP {
			ports = append(ports, selftest.Port{Name: name, Port: PortOf(ln)})
		}
	}
	for _, ln := range l.Admin {
		add("admin API", ln)
	}
	add("metrics", l.Metrics)
	add("public URLs", l.HTTPS)
	add("public URLs, plain", l.HTTP)
	add("remote boxes", l.Remote)
	add("SSH", l.SSH)
	add("fleet", l.Fleet)
	return append(ports, selftest.Port{Name: "transparent proxy, asked directly", Port: l.ProxyPort})
}
