package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Packet counts the packets of one kind that reached the internet namespace.
type Packet struct {
	Src, Dst netip.Addr
	Protocol int    // IP protocol number: 1 ICMP, 6 TCP, 17 UDP, 58 ICMPv6 …
	Port     uint16 // destination port of TCP and UDP
	Count    int
}

// packets counts the packets that arrive over the link. Safe for concurrent use.
type packets struct {
	mu     sync.Mutex
	counts map[Packet]int
	order  []Packet

	socket  *os.File // nil: packets are not counted
	running sync.WaitGroup
}

const maxPackets = 1 << 16

func (p *packets) add(k Packet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil {
		p.counts = map[Packet]int{}
	}
	if _, ok := p.counts[k]; !ok {
		if len(p.order) >= maxPackets {
			return
		}
		p.order = append(p.order, k)
	}
	p.counts[k]++
}

// capture starts counting the packets that arrive over the link.
func (p *packets) capture(internet *NS, logf func(format string, args ...any)) error {
	err := internet.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // receives no packet until bound
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		p.socket = os.NewFile(uintptr(fd), "packets")
		link, err := net.InterfaceByName(linkInternet)
		if err != nil {
			return err
		}
		protocol := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // in network order
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index}))
	})
	if err != nil {
		return err
	}
	p.running.Go(func() { p.read(logf) })
	return nil
}

// read counts packets until Close.
func (p *packets) read(logf func(format string, args ...any)) {
	buf := make([]byte, 128)
	for {
		size, err := p.socket.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			logf("test internet: packets: %v", err)
			continue
		}
		if k, ok := parsePacket(buf[:size]); ok && !isLinkTraffic(k) {
			p.add(k)
		}
	}
}

// Close stops counting.
func (p *packets) Close() error {
	if p.socket == nil {
		return nil
	}
	err := p.socket.Close()
	p.running.Wait()
	return err
}

// to returns the packets that reached the given addresses. nil means every address.
func (p *packets) to(addrs map[netip.Addr]bool) []Packet {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Packet
	for _, k := range p.order {
		if addrs == nil || addrs[k.Dst] {
			k.Count = p.counts[k]
			out = append(out, k)
		}
	}
	return out
}

func (p *packets) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts, p.order = nil, nil
}

// isLinkTraffic reports whether a packet is traffic of the link itself, or a reply to the gateway.
func isLinkTraffic(k Packet) bool {
	return k.Dst == gatewayV4 || k.Dst == gatewayV6 || k.Dst == internetV6 && k.Protocol == unix.IPPROTO_ICMPV6 ||
		k.Dst.IsMulticast() || k.Dst.IsLinkLocalUnicast() && k.Dst.Is6() || k.Dst.IsLoopback()
}

// parsePacket reads the IP header of a packet, and the ports after it.
func parsePacket(b []byte) (Packet, bool) {
	var k Packet
	var rest []byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		k.Src, k.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		k.Protocol = int(b[9])
		if head := int(b[0]&15) * 4; head <= len(b) && binary.BigEndian.Uint16(b[6:])&0x1fff == 0 {
			rest = b[head:]
		}
	case len(b) >= 40 && b[0]>>4 == 6:
		k.Src, k.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		k.Protocol, rest = int(b[6]), b[40:]
	default:
		return k, false
	}
	if (k.Protocol == unix.IPPROTO_TCP || k.Protocol == unix.IPPROTO_UDP) && len(rest) >= 4 {
		k.Port = binary.BigEndian.Uint16(rest[2:])
	}
	return k, true
}
