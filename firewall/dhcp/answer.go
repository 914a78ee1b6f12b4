package dhcp

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"golang.org/x/sys/unix"
)

const (
	portServer4, portClient4 = 67, 68
	portServer6, portClient6 = 547, 546
	routerSolicitation       = 133
	routerAdvertisement      = 134
)

const (
	etherHeader = 14
	v4Header    = 20
	v6Header    = 40
	udpHeader   = 8
)

var (
	allNodes   = netip.MustParseAddr("ff02::1")
	limited    = netip.AddrFrom4([4]byte{255, 255, 255, 255}) // the limited broadcast
	serverless = netip.IPv4Unspecified()
)

// Answer returns the frame that answers one of the client, or nil. The frame is untrusted; answers have a few hundred bytes.
func (c *Client) Answer(frame []byte) []byte {
	if len(frame) < etherHeader || !bytes.Equal(frame[6:12], c.MAC) {
		return nil
	}
	kind, b := binary.BigEndian.Uint16(frame[12:]), frame[etherHeader:]
	switch {
	case kind == unix.ETH_P_IP && len(b) >= v4Header+udpHeader && b[0] == 0x45 && b[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(b[6:])&0x3fff == 0:
		if udp := udpOf(b[v4Header:], portServer4); udp != nil {
			return c.answer4(udp)
		}
	case kind == unix.ETH_P_IPV6 && len(b) >= v6Header && b[0]>>4 == 6:
		from := netip.AddrFrom16([16]byte(b[8:24]))
		switch p := b[v6Header:]; {
		case b[6] == unix.IPPROTO_ICMPV6 && b[7] == 255 && len(p) >= 8 && p[0] == routerSolicitation && p[1] == 0:
			if !from.IsLinkLocalUnicast() {
				from = allNodes
			}
			return c.advertisement(from)
		case b[6] == unix.IPPROTO_UDP && from.IsLinkLocalUnicast():
			if udp := udpOf(p, portServer6); udp != nil {
				return c.answer6(from, udp)
			}
		}
	}
	return nil
}

// udpOf returns the payload of a UDP datagram to the port, or nil.
func udpOf(b []byte, port uint16) []byte {
	if len(b) < udpHeader || binary.BigEndian.Uint16(b[2:]) != port {
		return nil
	}
	if n := int(binary.BigEndian.Uint16(b[4:])); n > udpHeader && n <= len(b) {
		return b[udpHeader:n]
	}
	return nil
}

// answer4 answers a message of DHCP (RFC 2131).
func (c *Client) answer4(payload []byte) []byte {
	m, err := dhcpv4.FromBytes(payload)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootRequest || m.HWType != iana.HWTypeEthernet || !bytes.Equal(m.ClientHWAddr, c.MAC) {
		return nil
	}
	if server := m.ServerIdentifier(); server != nil && !server.Equal(c.Gateway.AsSlice()) || !m.GatewayIPAddr.IsUnspecified() {
		return nil // for another server, or by a relay
	}
	kind := dhcpv4.MessageTypeAck
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		kind = dhcpv4.MessageTypeOffer
	case dhcpv4.MessageTypeRequest:
		wanted := m.RequestedIPAddress()
		if wanted == nil {
			wanted = m.ClientIPAddr
		}
		if !wanted.Equal(c.V4.AsSlice()) {
			kind = dhcpv4.MessageTypeNak
		}
	case dhcpv4.MessageTypeInform:
	default:
		return nil
	}
	reply, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(kind), dhcpv4.WithServerIP(serverless.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(c.Gateway.AsSlice())))
	if err != nil {
		return nil
	}
	to := c.V4
	if kind == dhcpv4.MessageTypeNak || m.IsBroadcast() {
		to = limited
	}
	if kind != dhcpv4.MessageTypeNak {
		c.configure4(reply, m.MessageType() == dhcpv4.MessageTypeInform)
	}
	return c.frame(unix.ETH_P_IP, c.MAC, packet4(c.Gateway, to, datagram(portServer4, portClient4, reply.ToBytes())))
}

// configure4 adds the configuration to a reply; informed: for a client that has an address.
func (c *Client) configure4(reply *dhcpv4.DHCPv4, informed bool) {
	gateway := net.IP(c.Gateway.AsSlice())
	reply.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(c.Bits, c.V4.BitLen())))
	reply.UpdateOption(dhcpv4.OptRouter(gateway))
	reply.UpdateOption(dhcpv4.OptDNS(gateway))
	reply.UpdateOption(dhcpv4.Option{Code: dhcpv4.OptionInterfaceMTU, Value: dhcpv4.Uint16(c.MTU)}) //nolint:gosec // at most 65535
	if !informed {
		reply.YourIPAddr = c.V4.AsSlice()
		reply.UpdateOption(dhcpv4.OptIPAddressLeaseTime(lease))
	}
}

// answer6 answers a message of DHCPv6 (RFC 8415).
func (c *Client) answer6(from netip.Addr, payload []byte) []byte {
	m, err := dhcpv6.MessageFromBytes(payload)
	if err != nil || m.Options.ClientID() == nil {
		return nil
	}
	own := &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: c.Host}
	if server := m.Options.ServerID(); server != nil && !server.Equal(own) {
		return nil
	}
	options := []dhcpv6.Modifier{dhcpv6.WithServerID(own), dhcpv6.WithDNS(c.DNS6.AsSlice())}
	var reply *dhcpv6.Message
	switch m.MessageType {
	case dhcpv6.MessageTypeSolicit:
		if m.GetOneOption(dhcpv6.OptionRapidCommit) != nil {
			reply, err = dhcpv6.NewReplyFromMessage(m, append(options, dhcpv6.WithRapidCommit, c.address6(m))...)
			break
		}
		reply, err = dhcpv6.NewAdvertiseFromSolicit(m, append(options, c.address6(m))...)
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		reply, err = dhcpv6.NewReplyFromMessage(m, append(options, c.address6(m))...)
	case dhcpv6.MessageTypeConfirm:
		reply, err = dhcpv6.NewReplyFromMessage(m, append(options, c.confirmed(m))...)
	case dhcpv6.MessageTypeInformationRequest:
		reply, err = dhcpv6.NewReplyFromMessage(m, options...)
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	udp := datagram(portServer6, portClient6, reply.ToBytes())
	return c.frame(unix.ETH_P_IPV6, c.MAC, packet6(c.Router, from, unix.IPPROTO_UDP, 6, udp))
}

// address6 adds the address of the client for the first association that it asks for.
func (c *Client) address6(m *dhcpv6.Message) dhcpv6.Modifier {
	return func(d dhcpv6.DHCPv6) {
		asked := m.Options.OneIANA()
		if asked == nil {
			return
		}
		answer := &dhcpv6.OptIANA{IaId: asked.IaId, T1: lease / 2, T2: lease * 4 / 5}
		answer.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: c.V6.AsSlice(), PreferredLifetime: lease, ValidLifetime: lease})
		d.AddOption(answer)
	}
}

// confirmed adds whether the addresses of a client are right for its link.
func (c *Client) confirmed(m *dhcpv6.Message) dhcpv6.Modifier {
	status := iana.StatusSuccess
	for _, association := range m.Options.IANA() {
		if slices.ContainsFunc(association.Options.Addresses(), func(a *dhcpv6.OptIAAddress) bool { return !a.IPv6Addr.Equal(c.V6.AsSlice()) }) {
			status = iana.StatusNotOnLink
		}
	}
	return dhcpv6.WithOption(&dhcpv6.OptStatusCode{StatusCode: status})
}

// advertisement returns a router advertisement (RFC 4861): the gateway is the default router and the DNS server (RFC 8106), and
// addresses come by DHCPv6. It has no prefix, so that the client makes up no addresses.
func (c *Client) advertisement(to netip.Addr) []byte {
	const managed, other = 0x80, 0x40
	lifetime := uint16(routerLifetime / time.Second)
	b := []byte{routerAdvertisement, 0, 0, 0, 64, managed | other}
	b = append(binary.BigEndian.AppendUint16(b, lifetime), make([]byte, 8)...)
	b = append(append(b, 1, 1), c.Host...)
	b = binary.BigEndian.AppendUint32(append(b, 5, 1, 0, 0), uint32(c.MTU)) //nolint:gosec // at most 65535
	b = binary.BigEndian.AppendUint32(append(b, 25, 3, 0, 0), uint32(lifetime))
	b = append(b, c.DNS6.AsSlice()...)
	mac := c.MAC
	if to == allNodes {
		mac = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	}
	return c.frame(unix.ETH_P_IPV6, mac, packet6(c.Router, to, unix.IPPROTO_ICMPV6, 2, b))
}

// frame returns an Ethernet frame from the gateway's end.
func (c *Client) frame(kind uint16, to net.HardwareAddr, payload []byte) []byte {
	b := append(append(make([]byte, 0, etherHeader+len(payload)), to...), c.Host...)
	return append(binary.BigEndian.AppendUint16(b, kind), payload...)
}

// datagram returns a UDP datagram without a checksum.
func datagram(from, to uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	b = append(binary.BigEndian.AppendUint16(b, uint16(udpHeader+len(payload))), 0, 0) //nolint:gosec // a few hundred bytes
	return append(b, payload...)
}

// packet4 returns an IPv4 packet with a UDP datagram.
func packet4(from, to netip.Addr, udp []byte) []byte {
	b := make([]byte, 0, v4Header+len(udp))
	b = append(binary.BigEndian.AppendUint16(append(b, 0x45, 0), uint16(v4Header+len(udp))), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0) //nolint:gosec // as above
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], ^sum(0, b))
	b = append(b, udp...)
	setSum(b[v4Header:], 6, sum(uint32(unix.IPPROTO_UDP+len(udp)), b[12:])) //nolint:gosec // as above
	return b
}

// packet6 returns an IPv6 packet. at is the offset of the checksum in the payload.
func packet6(from, to netip.Addr, next byte, at int, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload))) //nolint:gosec // as above
	b = append(append(append(b, next, 255), from.AsSlice()...), to.AsSlice()...)
	b = append(b, payload...)
	setSum(b[v6Header:], at, sum(uint32(int(next)+len(payload)), b[8:])) //nolint:gosec // as above
	return b
}

// setSum stores the complement of a sum, never as zero, which means no checksum in UDP.
func setSum(b []byte, at int, total uint16) {
	if total = ^total; total == 0 {
		total = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], total)
}

// sum adds 16-bit words with the carries (RFC 1071).
func sum(total uint32, b []byte) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		total += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		total += uint32(b[0]) << 8
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}
