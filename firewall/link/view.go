package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// View is a snapshot of the host's links and routes, for attaching many boxes. Without one (nil) they are read per box.
type View struct {
	links  map[string]netlink.Link
	routes map[int][]netlink.Route // by link
	confs  map[string]confs
}

func newView() *View {
	return &View{links: map[string]netlink.Link{}, routes: map[int][]netlink.Route{}, confs: map[string]confs{}}
}

// ReadView reads the links and routes of the host.
func (l *Links) ReadView() (*View, error) {
	v := newView()
	if err := namespace.Do(l.ns, v.readLinks); err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	l.recordLinks(v.links)
	for _, fam := range network.Families {
		routes, err := l.nl.RouteList(nil, network.RouteFamily(fam))
		if err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		for _, r := range routes {
			v.routes[r.LinkIndex] = append(v.routes[r.LinkIndex], r)
		}
	}
	return v, nil
}

// readLinks reads the interfaces in the namespace of the calling thread, with their sysctls.
func (v *View) readLinks() error {
	messages, err := namespace.Whole(dumpLinks)
	if err != nil {
		return err
	}
	for _, m := range messages {
		link, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return err
		}
		name, c := confsOf(m)
		v.links[name], v.confs[name] = link, c
	}
	return nil
}

// dumpLinks returns the kernel's message about each interface in the namespace of the calling thread.
func dumpLinks() ([][]byte, error) {
	ask := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	ask.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	return ask.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
}

// conf returns the known sysctls of the host's link with that name.
func (v *View) conf(name string) confs {
	if v == nil {
		return nil
	}
	return v.confs[name]
}

// linkNamed returns the host's link with that name, or nil.
func (l *Links) linkNamed(name string, v *View) (netlink.Link, error) {
	if v != nil {
		return v.links[name], nil
	}
	link, err := l.nl.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return link, nil
}

// routesTo returns the routes of the address's family that lead to the link.
func (l *Links) routesTo(link netlink.Link, a netip.Addr, v *View) (found []netlink.Route, err error) {
	all, family := []netlink.Route(nil), network.RouteFamily(network.FamilyOf(a))
	if v != nil {
		all = v.routes[link.Attrs().Index]
	} else if all, err = l.nl.RouteList(link, family); err != nil {
		return nil, fmt.Errorf("routes of %s: %w", link.Attrs().Name, err)
	}
	for _, r := range all {
		if r.Family == family {
			found = append(found, r)
		}
	}
	return found, nil
}

// isRoute reports whether a route of the link is the right one to the box's address.
func isRoute(r netlink.Route, box, gateway netip.Addr) bool {
	return r.Dst != nil && r.Dst.String() == network.HostNet(box).String() && r.Src.Equal(gateway.AsSlice()) && r.Gw == nil &&
		r.Protocol == network.KernelProtocol && r.Type == unix.RTN_UNICAST && len(r.MultiPath) == 0
}

// The kernel includes the sysctls of an interface in messages about it, in arrays that grow with new versions:
// IFLA_INET_CONF and IFLA_INET6_CONF in IFLA_AF_SPEC. One dump of all interfaces replaces reading a dozen files per box at
// startup.
const (
	inetConf  = 1 // IFLA_INET_CONF
	inet6Conf = 2 // IFLA_INET6_CONF
)

// confIndex is the index of a sysctl in its array: IPV4_DEVCONF_* of linux/ip.h less one, DEVCONF_* of linux/ipv6.h.
var confIndex = map[string]int{
	"ipv4/forwarding": 0, "ipv4/proxy_arp": 2, "ipv4/accept_redirects": 3, "ipv4/send_redirects": 5, "ipv4/rp_filter": 7, "ipv4/arp_ignore": 18,
	"ipv4/accept_local": 22, "ipv4/route_localnet": 25, "ipv4/drop_unicast_in_l2_multicast": 29,
	"ipv6/forwarding": 0, "ipv6/accept_ra": 3, "ipv6/accept_redirects": 4, "ipv6/disable_ipv6": 26, "ipv6/drop_unicast_in_l2_multicast": 40,
	"ipv6/addr_gen_mode": 47,
}

// confs are the sysctls of an interface, by IP version.
type confs map[string][]byte

// confsNamed returns the sysctls of one interface in the namespace of the calling thread; nil if they cannot be read.
func confsNamed(name string) confs {
	ask := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	ask.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	ask.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	messages, err := ask.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil || len(messages) != 1 {
		return nil
	}
	_, found := confsOf(messages[0])
	return found
}

// confsOf returns the sysctls in a message about an interface.
func confsOf(message []byte) (name string, found confs) {
	if len(message) < unix.SizeofIfInfomsg {
		return "", nil
	}
	found = confs{}
	for _, a := range attributes(message[unix.SizeofIfInfomsg:]) {
		switch a.kind {
		case unix.IFLA_IFNAME:
			name = strings.TrimRight(string(a.value), "\x00")
		case unix.IFLA_AF_SPEC:
			for _, family := range attributes(a.value) {
				for _, conf := range attributes(family.value) {
					switch {
					case family.kind == unix.AF_INET && conf.kind == inetConf:
						found["ipv4"] = conf.value
					case family.kind == unix.AF_INET6 && conf.kind == inet6Conf:
						found["ipv6"] = conf.value
					}
				}
			}
		}
	}
	return name, found
}

type attribute struct {
	kind  uint16
	value []byte
}

// attributes parses netlink attributes; the result is empty if they are malformed.
func attributes(b []byte) (list []attribute) {
	parsed, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for _, a := range parsed {
		list = append(list, attribute{a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), a.Value})
	}
	return list
}

// haveValues reports whether all sysctls have the given values. It returns false if one is unknown.
func (c confs) haveValues(want []namespace.Sysctl) bool {
	for _, s := range want {
		version, rest, _ := strings.Cut(s.Path, "/")
		i, known := confIndex[version+rest[strings.LastIndexByte(rest, '/'):]]
		value := c[version]
		if !known || len(value) < 4*i+4 || strconv.FormatInt(int64(int32(binary.NativeEndian.Uint32(value[4*i:]))), 10) != s.Value {
			return false
		}
	}
	return true
}

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
