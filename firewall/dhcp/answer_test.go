package dhcp

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var client = Client{
	MAC: net.HardwareAddr{2, 0, 0, 0, 0, 7}, Host: net.HardwareAddr{2, 0, 0, 0, 0, 1}, V4: netip.MustParseAddr("10.77.0.20"), V6: netip.MustParseAddr("fd77::20"),
	Bits: 16, Gateway: netip.MustParseAddr("10.77.0.1"), DNS6: netip.MustParseAddr("fd77::1"), Router: netip.MustParseAddr("fe80::1"), MTU: 1400,
}

// from returns a frame of a client.
func from(mac net.HardwareAddr, kind uint16, payload []byte) []byte {
	b := append(bytes.Repeat([]byte{255}, 6), mac...)
	return append(binary.BigEndian.AppendUint16(b, kind), payload...)
}

func message4(t testing.TB, mac net.HardwareAddr, modifiers ...dhcpv4.Modifier) []byte {
	t.Helper()
	m, err := dhcpv4.NewDiscovery(mac, modifiers...)
	if err != nil {
		t.Fatal(err)
	}
	return from(mac, unix.ETH_P_IP, packet4(serverless, limited, datagram(portClient4, portServer4, m.ToBytes())))
}

func message6(t testing.TB, mac net.HardwareAddr, kind dhcpv6.MessageType, modifiers ...dhcpv6.Modifier) []byte {
	t.Helper()
	m, err := dhcpv6.NewSolicit(mac, modifiers...)
	if err != nil {
		t.Fatal(err)
	}
	m.MessageType = kind
	return from(mac, unix.ETH_P_IPV6, packet6(netip.MustParseAddr("fe80::77"), netip.MustParseAddr("ff02::1:2"), unix.IPPROTO_UDP, 6, datagram(portClient6, portServer6, m.ToBytes())))
}

func solicitation(mac net.HardwareAddr, from6 string) []byte {
	return from(mac, unix.ETH_P_IPV6, packet6(netip.MustParseAddr(from6), netip.MustParseAddr("ff02::2"), unix.IPPROTO_ICMPV6, 2, []byte{routerSolicitation, 0, 0, 0, 0, 0, 0, 0}))
}

// answered4 parses an answer; nil: none.
func answered4(t *testing.T, frame []byte) *dhcpv4.DHCPv4 {
	t.Helper()
	if frame == nil {
		return nil
	}
	if !bytes.Equal(frame[:6], client.MAC) || sum(0, frame[14:34]) != 0xffff || sum(uint32(unix.IPPROTO_UDP+len(frame)-34), frame[26:]) != 0xffff {
		t.Errorf("a frame with a wrong address or checksum: %x", frame)
	}
	m, err := dhcpv4.FromBytes(frame[42:])
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A client gets always its address, and the refusal of any other.
func TestClientGetsItsAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		modifiers []dhcpv4.Modifier
		want      dhcpv4.MessageType
	}{
		{nil, dhcpv4.MessageTypeOffer},
		{[]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IP{10, 77, 0, 20}))}, dhcpv4.MessageTypeAck},
		{[]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(net.IP{10, 77, 0, 20})}, dhcpv4.MessageTypeAck},
		{[]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IP{10, 77, 0, 21}))}, dhcpv4.MessageTypeNak},
		{[]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeInform)}, dhcpv4.MessageTypeAck},
	} {
		m := answered4(t, client.Answer(message4(t, client.MAC, c.modifiers...)))
		if m == nil || m.MessageType() != c.want || !m.ServerIdentifier().Equal(net.IP{10, 77, 0, 1}) {
			t.Errorf("want %v: %v", c.want, m)
			continue
		}
		if c.want == dhcpv4.MessageTypeNak {
			continue
		}
		if ones, _ := m.SubnetMask().Size(); ones != 16 || !m.Router()[0].Equal(net.IP{10, 77, 0, 1}) || !m.DNS()[0].Equal(net.IP{10, 77, 0, 1}) ||
			!bytes.Equal(m.Options.Get(dhcpv4.OptionInterfaceMTU), []byte{5, 120}) {
			t.Errorf("the configuration: %v", m.Summary())
		}
	}
	for _, ignored := range [][]dhcpv4.Modifier{
		{dhcpv4.WithMessageType(dhcpv4.MessageTypeDecline)}, {dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease)}, {dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer)},
		{dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IP{10, 77, 0, 9}))}, {dhcpv4.WithRelay(net.IP{10, 77, 0, 9})}, {dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 8})},
	} {
		if m := answered4(t, client.Answer(message4(t, client.MAC, ignored...))); m != nil {
			t.Errorf("answered: %v", m.Summary())
		}
	}
	if client.Answer(message4(t, net.HardwareAddr{2, 0, 0, 0, 0, 8})) != nil {
		t.Error("another client was answered")
	}
}

// A client learns its IPv6 address by DHCPv6, and its router and DNS server by an advertisement.
func TestClientLearnsItsRouter(t *testing.T) {
	t.Parallel()
	for kind, want := range map[dhcpv6.MessageType]dhcpv6.MessageType{
		dhcpv6.MessageTypeSolicit: dhcpv6.MessageTypeAdvertise, dhcpv6.MessageTypeRequest: dhcpv6.MessageTypeReply,
		dhcpv6.MessageTypeRenew: dhcpv6.MessageTypeReply, dhcpv6.MessageTypeRebind: dhcpv6.MessageTypeReply,
	} {
		frame := client.Answer(message6(t, client.MAC, kind))
		if frame == nil || sum(uint32(unix.IPPROTO_UDP+len(frame)-54), frame[22:]) != 0xffff {
			t.Errorf("%v: %x", kind, frame)
			continue
		}
		m, err := dhcpv6.MessageFromBytes(frame[62:])
		if err != nil || m.MessageType != want || m.Options.OneIANA() == nil || !m.Options.OneIANA().Options.OneAddress().IPv6Addr.Equal(client.V6.AsSlice()) || len(m.Options.DNS()) != 1 {
			t.Errorf("%v: %v, %v", kind, m, err)
		}
	}
	for source, to := range map[string]string{"fe80::77": "fe80::77", "::": "ff02::1"} {
		frame := client.Answer(solicitation(client.MAC, source))
		if frame == nil || frame[54] != routerAdvertisement || frame[59] != 0xc0 || netip.AddrFrom16([16]byte(frame[38:54])) != netip.MustParseAddr(to) ||
			sum(uint32(unix.IPPROTO_ICMPV6+len(frame)-54), frame[22:]) != 0xffff || !bytes.Contains(frame, client.DNS6.AsSlice()) {
			t.Errorf("to %s: %x", source, frame)
		}
	}
	if client.Answer(solicitation(net.HardwareAddr{2, 0, 0, 0, 0, 8}, "fe80::77")) != nil || client.Answer(message6(t, client.MAC, dhcpv6.MessageTypeDecline)) != nil {
		t.Error("another client or message was answered")
	}
}

// The filter of the socket takes exactly the messages for the server.
func TestFilterTakesOnlyMessagesOfTheClient(t *testing.T) {
	t.Parallel()
	var plain []bpf.Instruction // the simulator knows no extensions
	for i, in := range filterOf(client.MAC) {
		if i >= 4 {
			plain = append(plain, in)
		}
	}
	vm, err := bpf.NewVM(plain)
	if err != nil {
		t.Fatal(err)
	}
	stranger := net.HardwareAddr{2, 0, 0, 0, 0, 8}
	web := from(client.MAC, unix.ETH_P_IP, packet4(client.V4, client.Gateway, datagram(40000, 53, make([]byte, 8))))
	for _, c := range []struct {
		frame []byte
		taken bool
	}{
		{message4(t, client.MAC), true}, {message6(t, client.MAC, dhcpv6.MessageTypeSolicit), true}, {solicitation(client.MAC, "::"), true},
		{message4(t, stranger), false}, {message6(t, stranger, dhcpv6.MessageTypeSolicit), false}, {solicitation(stranger, "::"), false},
		{web, false}, {from(client.MAC, unix.ETH_P_ARP, make([]byte, 50)), false}, {web[:20], false},
	} {
		if n, err := vm.Run(c.frame); err != nil || (n > 0) != c.taken {
			t.Errorf("%x: %d, %v", c.frame, n, err)
		}
	}
}

// Any frame has an answer of bounded size to the client, or none.
func FuzzAnswer(f *testing.F) {
	f.Add(message4(f, client.MAC))
	f.Add(message6(f, client.MAC, dhcpv6.MessageTypeSolicit))
	f.Add(message6(f, client.MAC, dhcpv6.MessageTypeConfirm))
	f.Add(solicitation(client.MAC, "::"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		answer := client.Answer(frame)
		if answer != nil && (len(answer) > 2*maxFrame || !bytes.Equal(answer[6:12], client.Host)) {
			t.Errorf("%d bytes: %x", len(answer), answer)
		}
	})
}
