package link

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// Intact reports whether the interface exists, is up, and has the group and name that the rules match.
func (l *Links) Intact(index int, name string) bool {
	link, err := l.nl.LinkByIndex(index)
	if err != nil {
		return false
	}
	a := link.Attrs()
	return a.RawFlags&unix.IFF_UP != 0 && a.Group == network.LinkGroup && a.Name == name
}

// GateIntact reports whether the filter that marks packets as not judged is on the interface. It returns true for a missing
// interface, which has its own event.
func (l *Links) GateIntact(index int) bool {
	of := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	filters, err := l.nl.FilterList(of, netlink.HANDLE_MIN_INGRESS)
	if err == nil && slices.ContainsFunc(filters, func(x netlink.Filter) bool {
		bpf, ok := x.(*netlink.BpfFilter)
		return ok && bpf.Name == gateName && bpf.DirectAction && bpf.Attrs().Priority == gatePriority
	}) {
		return true
	}
	_, err = l.nl.LinkByIndex(index)
	return errors.As(err, new(netlink.LinkNotFoundError))
}

// SysctlsIntact reports whether the interface has the required sysctls. It checks the current values, because an interface
// that is being created has others for a moment.
func (l *Links) SysctlsIntact(name string) bool {
	return namespace.Do(l.ns, func() error {
		want := linkSysctls(name)
		if confsNamed(name).haveValues(want) {
			return nil
		}
		for _, s := range want { // older kernels do not include all of them in link messages
			have, err := namespace.ReadSysctl(s.Path)
			if err == nil && have != s.Value {
				err = errors.New(s.Path + " is " + have)
			}
			if err != nil && !errors.Is(err, unix.ENOENT) { // the interface is gone, which has its own event
				return err
			}
		}
		return nil
	}) == nil
}

// Routes returns the interface index of the route to each single address. If the routes cannot be read, the result is
// empty.
func (l *Links) Routes() map[netip.Addr]int {
	leads := map[netip.Addr]int{}
	for _, f := range network.Families {
		routes, err := l.nl.RouteList(nil, network.RouteFamily(f))
		if err != nil {
			return map[netip.Addr]int{}
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			a, _ := netip.AddrFromSlice(r.Dst.IP)
			ones, bits := r.Dst.Mask.Size()
			if _, known := leads[a]; !known && ones == bits { // the first one counts
				leads[a] = r.LinkIndex
			}
		}
	}
	return leads
}
