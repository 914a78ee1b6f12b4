package testnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NS is an unnamed network namespace, kept open by this process only. Safe for concurrent use.
type NS struct {
	inode uint64

	mu sync.RWMutex
	fd netns.NsHandle // -1 once closed
}

// NewNS creates a namespace, for a topology other than that of [Net]. The namespace of the calling thread does not
// change.
func NewNS() (*NS, error) {
	ns := &NS{fd: -1}
	err := onThread(func() error {
		fd, err := netns.New() // creates and enters it
		if err != nil {
			return fmt.Errorf("creating a network namespace (requires root): %w", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(fd), &st); err != nil {
			return errors.Join(err, fd.Close())
		}
		ns.fd, ns.inode = fd, st.Ino
		return nil
	})
	return ns, err
}

// onThread runs f on a locked thread that may change its namespace, and restores the namespace afterwards. A thread
// that cannot be restored stays locked, so that it ends with its goroutine and is never reused.
func onThread(f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("the thread's network namespace cannot be opened: %w", err)
	}
	restored := false
	defer func() {
		if err := netns.Set(home); err == nil {
			restored = true
		}
		_ = home.Close()
		if restored {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

// Do runs f in the namespace, on the calling goroutine. Goroutines that f starts are not in the namespace. Sockets that
// f opens stay in it wherever they are used.
func (ns *NS) Do(f func() error) error {
	return onThread(func() error {
		if err := ns.setns(); err != nil {
			return err
		}
		return f()
	})
}

func (ns *NS) setns() error {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if ns.fd < 0 {
		return errors.New("the network namespace is closed")
	}
	return netns.Set(ns.fd)
}

// End kills the processes still in the namespace and releases it.
func (ns *NS) End() error { return errors.Join(ns.KillProcesses(), ns.close()) }

// close releases the namespace; the kernel removes it when its last socket and process are gone.
func (ns *NS) close() error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.fd < 0 {
		return nil
	}
	return ns.fd.Close() // sets it to -1
}

// Path names the namespace for other processes, for as long as it is open in this one.
func (ns *NS) Path() string {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns.fd))
}

// Start starts cmd in the namespace, where it and its children stay. The caller waits for it as usual; [Net.Close]
// kills the processes that are left.
func (ns *NS) Start(cmd *exec.Cmd) error { return ns.Do(cmd.Start) }

// Run runs a command in the namespace and returns its output, standard error included. An exit other than 0 is an
// *[exec.ExitError].
func (ns *NS) Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := ns.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// Listen is [net.Listen] in the namespace. The address must not need a resolver.
func (ns *NS) Listen(network, address string) (ln net.Listener, err error) {
	err = ns.Do(func() (err error) {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// ListenPacket is [net.ListenPacket] in the namespace. The address must not need a resolver.
func (ns *NS) ListenPacket(network, address string) (pc net.PacketConn, err error) {
	err = ns.Do(func() (err error) {
		pc, err = net.ListenPacket(network, address)
		return err
	})
	return pc, err
}

// DialContext connects from within the namespace to an address and port. Host names are refused: to resolve one, the
// net package would use another thread. It has the signature of http.Transport.DialContext.
func (ns *NS) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial %q: an IP address and port are needed: %w", address, err)
	}
	err = ns.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// lockedBuffer collects the output of two streams.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Names of the two ends of the link.
const (
	linkGateway  = "up0"
	linkInternet = "net0"
)

// The addresses of the link, in the documentation ranges, but outside of the internet namespace's ranges.
var (
	gatewayV4, internetV4 = netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("192.0.2.253")
	gatewayV6, internetV6 = netip.MustParseAddr("2001:db8:ffff::254"), netip.MustParseAddr("2001:db8:ffff::253")
)

// hosted are the ranges whose every address is a host of the internet namespace.
var hosted = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/25"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/33"),
}

// Prefixes returns the documentation ranges of the hosts' addresses (RFC 5737, RFC 3849). A gateway under test excludes
// them from its protected ranges.
func Prefixes() []string {
	return []string{"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"}
}

// connect joins the two namespaces and sets up addresses and routes. It changes no other namespaces.
func connect(gateway, internet *NS) error {
	gw, err := openLinks(gateway)
	if err != nil {
		return err
	}
	defer gw.Close()
	inet, err := openLinks(internet)
	if err != nil {
		return err
	}
	defer inet.Close()
	if err := internet.Do(setHostSysctls); err != nil {
		return err
	}
	if err := errors.Join(up(gw, "lo"), up(inet, "lo")); err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: linkGateway}, PeerName: linkInternet, PeerNamespace: netlink.NsFd(internet.fd),
	}
	if err := gw.LinkAdd(veth); err != nil {
		return fmt.Errorf("creating the link between the namespaces: %w", err)
	}
	if err := errors.Join(up(gw, linkGateway), up(inet, linkInternet)); err != nil {
		return err
	}
	if err := errors.Join(awaitCarrier(gw, linkGateway), awaitCarrier(inet, linkInternet)); err != nil {
		return err
	}
	err = errors.Join(
		address(gw, linkGateway, gatewayV4, internetV4), address(gw, linkGateway, gatewayV6, internetV6),
		address(inet, linkInternet, internetV4, gatewayV4), address(inet, linkInternet, internetV6, gatewayV6))
	if err == nil {
		err = errors.Join(awaitAddress(gw, gatewayV6, internetV6), awaitAddress(inet, internetV6, gatewayV6), awaitLinkLocal(inet, linkInternet))
	}
	if err != nil {
		return err
	}
	err = errors.Join(defaultRoute(gw, linkGateway, internetV4), defaultRoute(gw, linkGateway, internetV6))
	for _, p := range hosted {
		err = errors.Join(err, addLocalPrefix(inet, p))
	}
	return err
}

// openLinks returns a netlink handle in the namespace.
func openLinks(ns *NS) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(ns.fd, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return h, nil
}

// setHostSysctls lets the servers bind the addresses of the hosted ranges, which are on no interface. It turns off
// duplicate address detection for link-local addresses: that takes seconds, and Chromium treats an address that appears
// as a network change and aborts its pending requests.
func setHostSysctls() error {
	for path, value := range map[string]string{
		"/proc/sys/net/ipv4/ip_nonlocal_bind":        "1",
		"/proc/sys/net/ipv6/ip_nonlocal_bind":        "1",
		"/proc/sys/net/ipv4/conf/all/rp_filter":      "0",
		"/proc/sys/net/ipv4/conf/default/rp_filter":  "0",
		"/proc/sys/net/ipv4/icmp_ratelimit":          "0",
		"/proc/sys/net/ipv6/conf/default/accept_dad": "0",
	} {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

func up(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return h.LinkSetUp(link)
}

// awaitCarrier waits until the kernel has noticed that the other end is up, which happens with a delay. Packets sent
// before may be lost.
func awaitCarrier(h *netlink.Handle, name string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not come up", name)
		}
	}
}

// address assigns one end of the link its address, with the other end as its only neighbour. Duplicate address
// detection is off so that the address is usable immediately.
func address(h *netlink.Handle, name string, a, peer netip.Addr) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	addr := &netlink.Addr{IPNet: hostNet(a), Peer: hostNet(peer)}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := h.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("%s address %s: %w", name, a, err)
	}
	return nil
}

// awaitAddress waits until an address of the namespace and the route to its peer work, before there is a default route.
// The kernel installs both some time after the address is added, and programs that watch the network would see it
// change.
func awaitAddress(h *netlink.Handle, a, peer netip.Addr) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		own, err := h.RouteGet(a.AsSlice())
		there, err2 := h.RouteGet(peer.AsSlice())
		if err == nil && err2 == nil && len(own) > 0 && own[0].Type == unix.RTN_LOCAL && len(there) > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("the kernel does not install address %s", a), err, err2)
		}
	}
}

// awaitLinkLocal waits until an interface has its link-local address.
func awaitLinkLocal(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		addrs, err := h.AddrList(link, netlink.FAMILY_V6)
		if err == nil && slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0 }) {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("%s has no link-local address", name), err)
		}
	}
}

// defaultRoute routes all other traffic over the link. It is marked on-link because the kernel creates the route to an
// IPv6 neighbour some time after the address.
func defaultRoute(h *netlink.Handle, name string, via netip.Addr) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	all := net.IPNet{IP: make(net.IP, via.BitLen()/8), Mask: net.CIDRMask(0, via.BitLen())}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &all, Gw: via.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
	if err := h.RouteAdd(route); err != nil {
		return fmt.Errorf("default route via %s: %w", via, err)
	}
	return nil
}

// addLocalPrefix makes every address of a prefix a local address of the namespace.
func addLocalPrefix(h *netlink.Handle, p netip.Prefix) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	dst := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	err = h.RouteReplace(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
	})
	if err != nil {
		return fmt.Errorf("addresses %s: %w", p, err)
	}
	return nil
}

// removeLocalPrefix undoes addLocalPrefix.
func removeLocalPrefix(h *netlink.Handle, p netip.Prefix) error {
	dst := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	err := h.RouteDel(&netlink.Route{Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST})
	if err != nil {
		return fmt.Errorf("removing addresses %s: %w", p, err)
	}
	return nil
}

// isHosted reports whether an address is always one of the internet namespace.
func isHosted(a netip.Addr) bool {
	return slices.ContainsFunc(hosted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// withLinks calls f with a netlink handle in the namespace.
func withLinks(ns *NS, f func(*netlink.Handle) error) error {
	h, err := openLinks(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	return f(h)
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// removeLinks removes the link between the namespaces. The kernel would do so only some time after the last socket is
// closed.
func removeLinks(ns *NS) error {
	h, err := openLinks(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	for _, name := range []string{linkGateway, linkInternet} {
		link, err := h.LinkByName(name)
		if err != nil {
			continue // removed with its other end
		}
		if err := h.LinkDel(link); err != nil {
			return fmt.Errorf("removing %s: %w", name, err)
		}
	}
	return nil
}

// KillProcesses kills the processes still in the namespace, commands started there and their children, and waits for their
// ends. The calling process is never among them because its threads leave the namespace again.
func (ns *NS) KillProcesses() error {
	deadline := time.Now().Add(time.Minute)
	for {
		pids, err := ns.Processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not leave the test internet", pids)
		}
		if err := killAndWait(pids, deadline); err != nil {
			return err
		}
	}
}

// killAndWait kills processes and waits until they have exited, using pidfds so that no reused PID is hit.
func killAndWait(pids []int, deadline time.Time) error {
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return err
		}
		err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		if err == nil {
			left := max(time.Until(deadline).Milliseconds(), 1)
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left))
		}
		_ = unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

// Processes returns the processes whose main thread is in the namespace.
func (ns *NS) Processes() ([]int, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st) == nil && st.Ino == ns.inode { // otherwise it has exited or is in another namespace
			out = append(out, pid)
		}
	}
	return out, nil
}
