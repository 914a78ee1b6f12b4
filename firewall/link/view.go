package link

import (
	"errors"
	"fmt"
	"net/netip"

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
