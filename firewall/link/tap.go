package link

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/policy"
)

// Tap is the interface of a box that is a virtual machine. Its VMM opens it by name.
type Tap struct {
	Name string // alternative name of the box's host-side interface; with Inside, the name in the namespace
	// Owner is the user who may open it; 0: root alone, never everybody.
	Owner      int
	NoDHCP     bool // the guest's network is configured without the gateway
	MultiQueue bool // the VMM opens it with IFF_MULTI_QUEUE, which the kernel compares
	// Inside: the VMM runs in the namespace of the box, and so the tap is there. Two filters join it to the box's end of an
	// interface pair, whose other end is the host side as for other boxes. Otherwise the tap itself is the host side.
	Inside bool
}

var tapNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// CheckTapName returns an error unless an interface of that name can be a tap of a box. Names with the prefix of the boxes'
// interfaces are the gateway's own.
func CheckTapName(name string) error {
	if !tapNames.MatchString(name) {
		return errors.New("want 1 to 15 letters, digits, dots, dashes or underscores, the first a letter or digit")
	}
	if len(name) == len(network.LinkName("")) && name[:len(network.LinkPrefix)] == network.LinkPrefix || slices.Contains([]string{"lo", Inside, "all", "default"}, name) {
		return fmt.Errorf("%s is the name of another interface", name)
	}
	return nil
}

// isHostSide reports whether the tap itself is the host side.
func (t *Tap) isHostSide() bool { return t != nil && !t.Inside }

// MAC returns the hardware address that a guest must use on its interface. The gateway's end has another.
func MAC(id policy.BoxID) net.HardwareAddr { return linkMAC(id, "box") }

// HostMAC returns the hardware address of the gateway's end.
func HostMAC(id policy.BoxID) net.HardwareAddr { return linkMAC(id, "host") }

// findTap returns the tap of a box that an earlier run made, or nil. Any other interface with its name is deleted.
func (l *Links) findTap(b *Attachment, v *View) (netlink.Link, error) {
	found, err := l.linkNamed(b.name(), v)
	if err != nil || found == nil {
		return nil, err
	}
	if isTap(found, b.Tap) {
		return found, nil
	}
	if err := l.nl.LinkDel(found); err != nil {
		return nil, fmt.Errorf("delete stale interface %s: %w", b.name(), err)
	}
	return nil, nil
}

// isTap reports whether an interface is a persistent tap that a VMM can open as t.
func isTap(l netlink.Link, t *Tap) bool {
	tap, ok := l.(*netlink.Tuntap)
	return ok && tap.Mode == netlink.TUNTAP_MODE_TAP && !tap.NonPersist && (tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0) == t.MultiQueue
}

// createTap makes the tap of a box, the host side of its link. It is down, and until nameTap, which follows the filter, only root can
// open it: another program could bring it up before. It replaces a tap with the name, see removeUnused.
func (l *Links) createTap(b *Attachment) (netlink.Link, error) {
	if err := removeUnused(l.nl, b.Tap); err != nil {
		return nil, err
	}
	if err := namespace.Do(l.ns, func() error { return makeTap(b.name(), &Tap{MultiQueue: b.Tap.MultiQueue}) }); err != nil {
		return nil, fmt.Errorf("tap %s: %w", b.Tap.Name, err)
	}
	made, err := l.nl.LinkByName(b.name())
	if err == nil {
		err = errors.Join(l.nl.LinkSetHardwareAddr(made, linkMAC(b.Box, "host")), l.nl.LinkSetMTU(made, l.wantedMTU()),
			l.nl.LinkSetGroup(made, int(network.LinkGroup)))
	}
	if err == nil {
		made, err = l.nl.LinkByName(b.name())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tap %s: %w", b.Tap.Name, err), l.Delete(b.name()))
	}
	return made, nil
}

// removeUnused removes an interface with the name of a tap that is to be made, if that is a persistent tap in no
// use: no program has it open, it has no address, and it is part of no bridge or other interface. Anything else is an error.
// Making it anew removes what another program has configured there, such as filters.
func removeUnused(h *netlink.Handle, t *Tap) error {
	old, err := h.LinkByName(t.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("interface %s: %w", t.Name, err)
	}
	a := old.Attrs()
	tap, ok := old.(*netlink.Tuntap)
	if !ok || tap.Mode != netlink.TUNTAP_MODE_TAP || tap.NonPersist {
		return fmt.Errorf("%w: the interface %s is not a persistent tap", ErrTapInUse, t.Name)
	}
	if network.IsLinkGroup(a.Group) || a.Name != t.Name {
		return fmt.Errorf("%w: %s is the tap of another box", ErrTapInUse, t.Name)
	}
	if a.RawFlags&(unix.IFF_LOWER_UP|unix.IFF_RUNNING) != 0 && a.RawFlags&unix.IFF_UP != 0 || tap.Queues > 0 {
		return fmt.Errorf("%w: a program has the tap %s open: stop it first", ErrTapInUse, t.Name)
	}
	addrs, err := h.AddrList(old, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("interface %s: %w", t.Name, err)
	}
	all, err := namespace.Whole(h.LinkList)
	if err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	above := slices.ContainsFunc(all, func(l netlink.Link) bool { return l.Attrs().ParentIndex == a.Index && l.Attrs().NetNsID < 0 })
	if len(addrs) != 0 || a.MasterIndex != 0 || above {
		return fmt.Errorf("%w: the tap %s has an address, or belongs to a bridge or another interface", ErrTapInUse, t.Name)
	}
	if err := h.LinkDel(old); err != nil {
		return fmt.Errorf("interface %s: %w", t.Name, err)
	}
	return nil
}

// ErrTapInUse refuses a name of a tap that another interface has.
var ErrTapInUse = errors.New("the name of the tap is taken")

// makeTap makes a persistent tap in the namespace of the calling thread. Its VMM chooses offloads and headers (IFF_VNET_HDR,
// TUNSETOFFLOAD) when it opens it.
func makeTap(name string, t *Tap) error {
	return withTap(name, t, unix.IFF_TUN_EXCL, func(fd int) error {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, t.Owner); err != nil {
			return os.NewSyscallError("TUNSETOWNER", err)
		}
		return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
	})
}

// setOwner sets the owner of a tap in the namespace of the calling thread, unless a VMM has it open: that may have given
// it away.
func setOwner(name string, t *Tap) error {
	err := withTap(name, t, 0, func(fd int) error {
		return os.NewSyscallError("TUNSETOWNER", unix.IoctlSetInt(fd, unix.TUNSETOWNER, t.Owner))
	})
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

// withTap calls do with a descriptor of a tap.
func withTap(name string, t *Tap, flags uint16, do func(fd int) error) error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	flags |= unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	if t.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	request.SetUint16(flags)
	fd := int(f.Fd())
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return os.NewSyscallError("TUNSETIFF", err)
	}
	return do(fd)
}

// nameTap gives the host side the VMM's name for it, its owner, and its hardware address, since the VMM can change those.
func (l *Links) nameTap(b *Attachment, link netlink.Link) error {
	if mac := linkMAC(b.Box, "host"); !bytes.Equal(link.Attrs().HardwareAddr, mac) {
		if err := l.nl.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("tap %s: %w", b.Tap.Name, err)
		}
	}
	if tap, ok := link.(*netlink.Tuntap); ok && int(tap.Owner) != b.Tap.Owner && tap.Queues == 0 { // opening it resets its flags
		if err := namespace.Do(l.ns, func() error { return setOwner(b.name(), b.Tap) }); err != nil {
			return fmt.Errorf("tap %s: %w", b.Tap.Name, err)
		}
	}
	if slices.Contains(link.Attrs().AltNames, b.Tap.Name) {
		return nil
	}
	for _, other := range link.Attrs().AltNames {
		if err := l.nl.LinkDelAltName(link, other); err != nil {
			return fmt.Errorf("tap %s: %w", b.Tap.Name, err)
		}
	}
	if err := l.nl.LinkAddAltName(link, b.Tap.Name); err != nil {
		return fmt.Errorf("tap %s: %w", b.Tap.Name, err)
	}
	return nil
}

// joinTap makes the tap inside the box's namespace, unless it exists, and joins it to the box's end of the pair.
// Neither has an address: the namespace's own stack takes no part.
func (l *Links) joinTap(b *Attachment, inside *netlink.Handle, ns netns.NsHandle) error {
	end, err := inside.LinkByName(Inside)
	if err != nil {
		return fmt.Errorf("inside the box: interface %s: %w", Inside, err)
	}
	tap, err := inside.LinkByName(b.Tap.Name)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		if err := namespace.Do(ns, func() error { return makeTap(b.Tap.Name, b.Tap) }); err != nil {
			return fmt.Errorf("inside the box: tap %s: %w", b.Tap.Name, err)
		}
		if tap, err = inside.LinkByName(b.Tap.Name); err == nil {
			err = inside.LinkSetMTU(tap, end.Attrs().MTU)
		}
	case err == nil && !isTap(tap, b.Tap):
		err = ErrTapInUse
	}
	if err != nil {
		return fmt.Errorf("inside the box: tap %s: %w", b.Tap.Name, err)
	}
	if err := namespace.Do(ns, func() error {
		return namespace.WriteSysctls([]namespace.Sysctl{{Path: "ipv6/conf/" + Inside + "/disable_ipv6", Value: "1"},
			{Path: "ipv6/conf/" + b.Tap.Name + "/disable_ipv6", Value: "1"}})
	}); err != nil {
		return fmt.Errorf("inside the box: %w", err)
	}
	for from, to := range map[netlink.Link]netlink.Link{end: tap, tap: end} {
		if err := forward(inside, from.Attrs().Index, to.Attrs().Index); err != nil {
			return fmt.Errorf("inside the box: joining %s and the tap: %w", Inside, err)
		}
	}
	return errors.Join(inside.LinkSetUp(tap), inside.LinkSetUp(end))
}

// FollowTap calls lost when the tap in the namespace of a box has been deleted, and when that can no longer be seen, until stop
// is called. lost is called by another goroutine, or before FollowTap returns.
func FollowTap(b *Attachment, lost func()) (stop func(), err error) {
	ns, inside, err := namespace.Open(b.NetNS)
	if err != nil {
		return nil, fmt.Errorf("inside the box: tap %s: %w", b.Tap.Name, err)
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	if err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{Namespace: &ns}); err != nil {
		return nil, fmt.Errorf("inside the box: tap %s: %w", b.Tap.Name, err)
	}
	name := b.Tap.Name
	go func() {
		for u := range updates {
			if u.Header.Type == unix.RTM_DELLINK && u.Attrs().Name == name {
				lost()
			}
		}
		select {
		case <-done:
		default:
			lost()
		}
	}()
	if _, err := inside.LinkByName(name); err != nil { // deleted before
		lost()
	}
	return sync.OnceFunc(func() { close(done) }), nil
}

// DeleteInside deletes the tap in the namespace of a box, if it has one there. [Links.Delete] leaves it, since it is no end of the
// pair. A namespace that is gone has taken the tap with it.
func (l *Links) DeleteInside(b *Attachment) error {
	if b.Tap == nil || !b.Tap.Inside {
		return nil
	}
	ns, inside, err := namespace.Open(b.NetNS)
	if errors.Is(err, namespace.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("inside the box: tap %s: %w", b.Tap.Name, err)
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	tap, err := inside.LinkByName(b.Tap.Name)
	if err == nil && isTap(tap, b.Tap) {
		err = inside.LinkDel(tap)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("inside the box: tap %s: %w", b.Tap.Name, err)
	}
	return nil
}

// forward sends all packets that arrive on one interface out of another.
func forward(h *netlink.Handle, from, to int) error {
	program, err := loadProgram(forwardTo(to))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(program) }() // the filter keeps the program
	return setFilter(h, from, program)
}
