package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"boxgate/firewall/link"
	"boxgate/host/sandboxns"
)

// podNet is the open network namespace of a pod. Close it.
type podNet struct {
	*netlink.Handle
	file *os.File
	path string // as the runtime named it
}

// openPod opens the network namespace of a pod. It refuses that of this process, which is the host's.
func openPod(path string) (*podNet, error) {
	file, err := sandboxns.OpenNetNS(path)
	if err != nil {
		return nil, err
	}
	own, err := netns.Get()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	defer own.Close()
	if ns := netns.NsHandle(file.Fd()); own.Equal(ns) {
		return nil, errors.Join(fmt.Errorf("%s is the network namespace of the host", path), file.Close())
	}
	handle, err := netlink.NewHandleAt(netns.NsHandle(file.Fd()))
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &podNet{Handle: handle, file: file, path: path}, nil
}

// Close closes the namespace.
func (p *podNet) Close() {
	p.Handle.Close()
	p.file.Close()
}

// removable lists the kinds of interfaces that DEL of the plugin that made them does not miss. An interface without a kind is a device
// of the host, which that plugin must give back.
var removable = []string{"veth", "macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "dummy", "tuntap", "bridge", "ipoib", "netkit"}

// earlier returns the interfaces of the plugins before this one: all in their result, and one with the attachment's name.
func (p *podNet) earlier(r *request) (links []netlink.Link, err error) {
	names := map[string]bool{r.ifname: true}
	for _, i := range r.prev.Interfaces {
		if i != nil && i.Sandbox != "" {
			names[i.Name] = true
		}
	}
	all, err := p.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if !names[l.Attrs().Name] || l.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		if !slices.Contains(removable, l.Type()) {
			return nil, fmt.Errorf("its interface %s (%s) is not one that can be removed", l.Attrs().Name, l.Type())
		}
		links = append(links, l)
	}
	return links, nil
}

// addressesOf returns the addresses of an interface as CIDRs, without link-local ones.
func (p *podNet) addressesOf(l netlink.Link) (list []string, err error) {
	addrs, err := p.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			list = append(list, a.IPNet.String())
		}
	}
	return list, nil
}

// standInPeer is the other end of the interface that addStandIn makes. It goes with it.
const standInPeer = "bg-stand-in"

// addStandIn makes an interface with the name and the addresses of the one that ADD removed, for DEL of the plugin that made it: it
// looks there for the addresses whose rules on the host it removes. It is down, and both its ends are in the pod. It has no effect if the
// namespace has ended.
func addStandIn(netnsPath, ifname string, addresses []string) error {
	if netnsPath == "" || len(addresses) == 0 {
		return nil
	}
	p, err := openPod(netnsPath)
	if err != nil {
		return nil //nolint:nilerr // it has ended, or is none: DEL succeeds
	}
	defer p.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ifname
	if err := p.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: standInPeer}); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fmt.Errorf("interface %s: %w", ifname, err)
	}
	l, err := p.LinkByName(ifname)
	if err != nil {
		return err
	}
	for _, text := range addresses {
		a, err := netlink.ParseAddr(text)
		if err == nil {
			err = p.AddrAdd(l, a)
		}
		if err != nil && !strings.Contains(text, ":") { // IPv6 may be off in the namespace
			return fmt.Errorf("address %s: %w", text, err)
		}
	}
	return nil
}

// checkOnlyWayOut checks that the gateway's interface is there as in the result of ADD, and that the pod has no other.
func (p *podNet) checkOnlyWayOut(result *types100.Result) error {
	all, err := p.LinkList()
	if err != nil {
		return err
	}
	var inside netlink.Link
	for _, l := range all {
		a := l.Attrs()
		switch {
		case a.Name == link.Inside:
			inside = l
		case a.Flags&net.FlagLoopback == 0 && a.Flags&net.FlagUp != 0:
			return fmt.Errorf("it has another interface, %s", a.Name)
		}
	}
	if inside == nil || inside.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("its interface %s is gone or down", link.Inside)
	}
	have, err := p.addressesOf(inside)
	if err != nil {
		return err
	}
	if result == nil {
		return nil
	}
	for _, ip := range result.IPs {
		if !slices.Contains(have, ip.Address.String()) {
			return fmt.Errorf("its interface %s does not have the address %v", link.Inside, ip.Address.String())
		}
	}
	return p.checkRoutes(inside, result)
}

// checkRoutes checks that the default routes of the result lead to the gateway.
func (p *podNet) checkRoutes(inside netlink.Link, result *types100.Result) error {
	routes, err := p.RouteList(inside, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, want := range result.Routes {
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool {
			return r.Gw.Equal(want.GW) && (r.Dst == nil || r.Dst.String() == want.Dst.String())
		}) {
			return fmt.Errorf("its route to %v is gone", want.Dst.String())
		}
	}
	return nil
}
