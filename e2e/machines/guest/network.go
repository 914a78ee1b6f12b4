package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/e2e/machines/orders"
)

// configure sets up the network, and returns its settings. The kernel handles router advertisements.
func (m *machine) configure(static *orders.Network) (*orders.Network, error) {
	if err := netlink.LinkSetUp(m.nic); err != nil {
		return nil, err
	}
	n := static
	if n == nil {
		v4, err := m.lease4()
		if err != nil {
			return nil, fmt.Errorf("DHCP: %w", err)
		}
		v6, err := m.lease6()
		if err != nil {
			return nil, fmt.Errorf("DHCPv6: %w", err)
		}
		n = &orders.Network{Addresses: append(v4.Addresses, v6.Addresses...), Routers: v4.Routers, DNS: append(v4.DNS, v6.DNS...), MTU: v4.MTU}
	}
	if n.MTU != 0 {
		if err := netlink.LinkSetMTU(m.nic, n.MTU); err != nil {
			return nil, err
		}
	}
	for _, a := range n.Addresses {
		ip := &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
		if err := netlink.AddrAdd(m.nic, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}); err != nil {
			return nil, fmt.Errorf("address %v: %w", a, err)
		}
	}
	for _, via := range n.Routers {
		all := &net.IPNet{IP: netip.PrefixFrom(via, 0).Masked().Addr().AsSlice(), Mask: net.CIDRMask(0, via.BitLen())}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: m.nic.Attrs().Index, Gw: via.AsSlice(), Dst: all}); err != nil {
			return nil, fmt.Errorf("route via %v: %w", via, err)
		}
	}
	var servers strings.Builder
	for _, a := range n.DNS {
		fmt.Fprintf(&servers, "nameserver %v\n", a)
	}
	if err := errors.Join(os.MkdirAll("/etc", 0o755), os.WriteFile("/etc/resolv.conf", []byte(servers.String()), 0o644)); err != nil { //nolint:gosec // a file for everybody
		return nil, err
	}
	if static != nil {
		return n, nil
	}
	router, err := await("a router advertisement", m.routerV6)
	if err == nil {
		n.Routers = append(n.Routers, router)
	}
	return n, err
}

// lease4 gets an address by DHCP (RFC 2131).
func (m *machine) lease4() (*orders.Network, error) {
	bind := func(_, _ string, c syscall.RawConn) (err error) {
		control := c.Control(func(fd uintptr) {
			err = errors.Join(unix.BindToDevice(int(fd), nicName), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
		})
		return errors.Join(control, err)
	}
	c, err := (&net.ListenConfig{Control: bind}).ListenPacket(context.Background(), "udp4", ":68")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	discover, err := dhcpv4.NewDiscovery(m.nic.Attrs().HardwareAddr, dhcpv4.WithBroadcast(true))
	if err != nil {
		return nil, err
	}
	offer, err := await("an offer", func() (*dhcpv4.DHCPv4, error) { return exchange4(c, discover, dhcpv4.MessageTypeOffer) })
	if err != nil {
		return nil, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, dhcpv4.WithBroadcast(true))
	if err != nil {
		return nil, err
	}
	ack, err := await("an acknowledgement", func() (*dhcpv4.DHCPv4, error) { return exchange4(c, request, dhcpv4.MessageTypeAck) })
	if err != nil {
		return nil, err
	}
	mtu, err := dhcpv4.GetUint16(dhcpv4.OptionInterfaceMTU, ack.Options)
	if err != nil {
		return nil, err
	}
	bits, _ := ack.SubnetMask().Size()
	return &orders.Network{Addresses: []netip.Prefix{netip.PrefixFrom(parse(ack.YourIPAddr), bits)},
		Routers: parseAll(ack.Router()), DNS: parseAll(ack.DNS()), MTU: int(mtu)}, nil
}

// exchange4 sends a message to all servers, and returns an answer that arrives within a second.
func exchange4(c net.PacketConn, m *dhcpv4.DHCPv4, want dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	if _, err := c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}); err != nil {
		return nil, err
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	b := make([]byte, 2048)
	for {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return nil, err
		}
		if answer, err := dhcpv4.FromBytes(b[:n]); err == nil && answer.TransactionID == m.TransactionID && answer.MessageType() == want {
			return answer, nil
		}
	}
}

// lease6 gets an address by DHCPv6 (RFC 8415), when the link-local address of the interface is ready.
func (m *machine) lease6() (*orders.Network, error) {
	c, err := await("a link-local address", func() (*nclient6.Client, error) { return nclient6.New(nicName) })
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	offer, err := c.Solicit(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := c.Request(ctx, offer)
	if err != nil {
		return nil, err
	}
	association := reply.Options.OneIANA()
	if association == nil {
		return nil, errors.New("the reply has no address")
	}
	n := &orders.Network{DNS: parseAll(reply.Options.DNS())}
	for _, a := range association.Options.Get(dhcpv6.OptionIAAddr) {
		if a, ok := a.(*dhcpv6.OptIAAddress); ok {
			n.Addresses = append(n.Addresses, netip.PrefixFrom(parse(a.IPv6Addr), 128))
		}
	}
	return n, nil
}

// routerV6 returns the next hop of the default route that the kernel has made of a router advertisement.
func (m *machine) routerV6() (netip.Addr, error) {
	routes, err := netlink.RouteList(m.nic, netlink.FAMILY_V6)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, r := range routes {
		if r.Gw != nil && r.Protocol == unix.RTPROT_RA {
			return parse(r.Gw), nil
		}
	}
	return netip.Addr{}, errors.New("no default route")
}

func parse(ip net.IP) netip.Addr { a, _ := netip.AddrFromSlice(ip); return a.Unmap() }

func parseAll(ips []net.IP) (out []netip.Addr) {
	for _, ip := range ips {
		out = append(out, parse(ip))
	}
	return out
}
