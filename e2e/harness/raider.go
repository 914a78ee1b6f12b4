package harness

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/internal/lab"
)

// Raider works in the network namespace of a box, with raw sockets that the box itself may not open.
type Raider struct {
	*World
	Box        string
	Pin        *os.File // network namespace of the box
	V4, V6     netip.Addr
	link       int              // index of eth0
	MAC, Other net.HardwareAddr // of eth0 and of the gateway's end of the link
	FD         int              // packet socket
}

// Raid returns a raider in a box.
func (w *World) Raid(box string) *Raider {
	w.T.Helper()
	kind := "netns"
	if _, ok := w.foreign.Load(box); ok {
		kind = "attached"
	}
	pin, err := os.Open(filepath.Join(lab.RunDir(w.Dir), kind, box))
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { pin.Close() })
	r := &Raider{World: w, Box: box, Pin: pin}
	if err := errors.Join(r.readLink(), r.Inside(r.openPackets)); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { unix.Close(r.FD) })
	return r
}

// readLink reads the addresses of both ends of the link.
func (r *Raider) readLink() error {
	h, err := netlink.NewHandleAt(netns.NsHandle(r.Pin.Fd()))
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	r.link, r.MAC = link.Attrs().Index, link.Attrs().HardwareAddr
	addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ip.Is4() {
			r.V4 = ip
		} else {
			r.V6 = ip
		}
	}
	neighbours, err := h.NeighList(r.link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, n := range neighbours {
		if n.State == netlink.NUD_PERMANENT {
			r.Other = n.HardwareAddr
		}
	}
	if !r.V4.IsValid() || !r.V6.IsValid() || r.Other == nil {
		return fmt.Errorf("box %s: addresses %v %v, gateway at %v", r.Box, r.V4, r.V6, r.Other)
	}
	return nil
}

// Own returns the box's address in the family of like.
func (r *Raider) Own(like netip.Addr) netip.Addr {
	if like.Is4() {
		return r.V4
	}
	return r.V6
}

// Inside runs f in the namespace. The sockets it opens stay there.
func (r *Raider) Inside(f func() error) error {
	return InNamespace(r.Pin, f)
}

// Dial connects from within the box, within 5 seconds.
func (r *Raider) Dial(network string, to netip.AddrPort) (net.Conn, error) {
	return r.dial(network, to, 5*time.Second)
}

func (r *Raider) dial(network string, to netip.AddrPort, within time.Duration) (c net.Conn, err error) {
	err = r.Inside(func() (err error) {
		d := net.Dialer{Timeout: within}
		c, err = d.DialContext(context.Background(), network, to.String())
		return err
	})
	if err == nil {
		r.T.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(answerWithin))
	}
	return c, err
}

// MustDial is [Raider.Dial] for a connection that must succeed.
func (r *Raider) MustDial(network string, to netip.AddrPort) net.Conn {
	r.T.Helper()
	c, err := r.dial(network, to, answerWithin)
	if err != nil {
		r.T.Fatal(err)
	}
	return c
}

// Results of a program that connects or sends to a destination.
const (
	SawReset      = "reset"      // TCP: connection refused or reset
	SawProhibited = "prohibited" // ICMP: administratively prohibited
	SawNothing    = "nothing"    // no answer
)

// Saw classifies an error as one of these results.
func Saw(err error) string {
	switch {
	case err == nil:
		return "success"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return SawReset
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EACCES):
		return SawProhibited
	case errors.Is(err, os.ErrDeadlineExceeded):
		return SawNothing
	}
	return err.Error()
}

// answerWithin is the timeout for an answer that must come.
const answerWithin = 20 * time.Second

// Try connects by TCP, or sends a datagram and waits for an answer, and returns the result. It waits two seconds for the answer to a
// datagram, which may not come.
func (r *Raider) Try(network string, to netip.AddrPort) string {
	c, err := r.dial(network, to, answerWithin)
	if err != nil {
		return Saw(err)
	}
	defer c.Close()
	if network == "tcp" {
		return Saw(nil)
	}
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, "anybody there?"); err != nil {
		return Saw(err)
	}
	_, err = c.Read(make([]byte, 64))
	if errors.Is(err, os.ErrDeadlineExceeded) { // perhaps this process was not running until then: an answer that is there counts
		_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = c.Read(make([]byte, 64))
	}
	return Saw(err)
}

// AttackerAt returns the n-th host of the attacker, in both families.
func AttackerAt(n byte) [2]netip.Addr {
	v6 := netip.MustParseAddr("2001:db8:bad::").As16()
	v6[15] = n
	return [2]netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, n}), netip.AddrFrom16(v6)}
}

// openPackets opens the packet socket that sends whole frames and receives the packets to the box.
func (r *Raider) openPackets() error {
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return err
	}
	r.FD = fd
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: r.link})
}

// Frame sends an Ethernet frame to the gateway, with the box's own hardware address.
func (r *Raider) Frame(ethertype uint16, payload []byte) {
	r.FrameFrom(r.MAC, r.Other, ethertype, payload)
}

// FrameFrom sends an Ethernet frame with arbitrary hardware addresses.
func (r *Raider) FrameFrom(src, dst net.HardwareAddr, ethertype uint16, payload []byte) {
	r.T.Helper()
	b := append(append([]byte{}, dst...), src...)
	b = append(binary.BigEndian.AppendUint16(b, ethertype), payload...)
	if err := unix.Sendto(r.FD, b, 0, &unix.SockaddrLinklayer{Ifindex: r.link}); err != nil {
		r.T.Fatalf("sending a frame: %v", err)
	}
}

// Packet sends an IP packet.
func (r *Raider) Packet(b []byte) {
	r.T.Helper()
	ethertype := uint16(unix.ETH_P_IP)
	if b[0]>>4 == 6 {
		ethertype = unix.ETH_P_IPV6
	}
	r.Frame(ethertype, b)
}

// RefusalOf waits for the gateway's answer to a packet sent to an address: a reset, or an ICMP error that quotes the
// packet.
func (r *Raider) RefusalOf(to netip.Addr, wait time.Duration) string {
	r.T.Helper()
	buf := make([]byte, 2048)
	for deadline := time.Now().Add(wait); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return SawNothing
		}
		tv := unix.NsecToTimeval(left.Nanoseconds())
		if err := unix.SetsockoptTimeval(r.FD, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			r.T.Fatal(err)
		}
		n, from, err := unix.Recvfrom(r.FD, buf, 0)
		if err != nil {
			continue
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING || n < 14 {
			continue
		}
		if what := answerAbout(buf[14:n], to); what != "" {
			return what
		}
	}
}

// answerAbout parses a packet to the box and returns the refusal of traffic to an address that it contains, or "".
func answerAbout(b []byte, to netip.Addr) string {
	switch {
	case len(b) >= 40 && b[0]>>4 == 4:
		src := netip.AddrFrom4([4]byte(b[12:16]))
		if b[9] == unix.IPPROTO_TCP && src == to && b[33]&4 != 0 {
			return SawReset
		}
		if b[9] == unix.IPPROTO_ICMP && b[20] == 3 && b[21] == 13 && len(b) >= 48 && netip.AddrFrom4([4]byte(b[44:48])) == to {
			return SawProhibited
		}
	case len(b) >= 60 && b[0]>>4 == 6:
		src := netip.AddrFrom16([16]byte(b[8:24]))
		if b[6] == unix.IPPROTO_TCP && src == to && b[53]&4 != 0 {
			return SawReset
		}
		if b[6] == unix.IPPROTO_ICMPV6 && b[40] == 1 && b[41] == 1 && len(b) >= 88 && netip.AddrFrom16([16]byte(b[72:88])) == to {
			return SawProhibited
		}
	}
	return ""
}

// IPPacket returns a packet of either family.
func IPPacket(src, dst netip.Addr, proto byte, payload []byte) []byte {
	if dst.Is4() {
		return IPv4Packet(src, dst, proto, nil, 0, payload)
	}
	b := make([]byte, 40, 40+len(payload))
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	b[6], b[7] = proto, 64
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	return append(b, payload...)
}

// IPv4Packet returns an IPv4 packet with options. fragment is its flags and fragment offset.
func IPv4Packet(src, dst netip.Addr, proto byte, options []byte, fragment uint16, payload []byte) []byte {
	head := 20 + len(options)
	b := make([]byte, head, head+len(payload))
	b[0] = 0x40 | byte(head/4)
	binary.BigEndian.PutUint16(b[2:], uint16(head+len(payload)))
	binary.BigEndian.PutUint16(b[4:], 4711)
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[8], b[9] = 64, proto
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	copy(b[20:], options)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, payload...)
}

// UDPPacket returns an IP packet with a datagram.
func UDPPacket(src, dst netip.AddrPort, payload string) []byte {
	b := binary.BigEndian.AppendUint16(nil, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(b, 0, 0), payload...)
	binary.BigEndian.PutUint16(b[6:], SumWith(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, b))
	return IPPacket(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, b)
}

// TCPPacket returns an IP packet with a TCP segment. flags are SYN 2, RST 4, PSH 8, ACK 16.
func TCPPacket(src, dst netip.AddrPort, flags byte, payload string) []byte {
	return IPPacket(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, TCPSegment(src, dst, flags, payload))
}

// TCPSegment returns a TCP segment without an IP header.
func TCPSegment(src, dst netip.AddrPort, flags byte, payload string) []byte {
	b := binary.BigEndian.AppendUint16(nil, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(b, 1000)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = append(b, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[16:], SumWith(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, b))
	return b
}

// ICMPPacket returns an ICMP message of the family of dst, of type kind for IPv4 and kind6 for IPv6. rest follows the
// checksum.
func ICMPPacket(src, dst netip.Addr, kind, kind6, code byte, rest []byte) []byte {
	if dst.Is4() {
		b := append([]byte{kind, code, 0, 0}, rest...)
		binary.BigEndian.PutUint16(b[2:], checksum(b))
		return IPPacket(src, dst, unix.IPPROTO_ICMP, b)
	}
	b := append([]byte{kind6, code, 0, 0}, rest...)
	binary.BigEndian.PutUint16(b[2:], SumWith(src, dst, unix.IPPROTO_ICMPV6, b))
	return IPPacket(src, dst, unix.IPPROTO_ICMPV6, b)
}

// SumWith returns the checksum of a transport message and its pseudo-header.
func SumWith(src, dst netip.Addr, proto byte, b []byte) uint16 {
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	if src.Is4() {
		pseudo = append(pseudo, 0, proto)
		pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(b)))
	} else {
		pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(b)))
		pseudo = append(pseudo, 0, 0, 0, proto)
	}
	return checksum(append(pseudo, b...))
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		word := uint32(b[i]) << 8
		if i+1 < len(b) {
			word |= uint32(b[i+1])
		}
		sum += word
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Chatter keeps a connection or UDP flow busy and records the time of the last answer.
type Chatter struct {
	Conn  net.Conn
	Heard atomic.Int64  // time of the last answer in nanoseconds
	Count atomic.Int64  // number of answers
	Ended chan struct{} // closed on a write error, or on stop
	stop  atomic.Bool
}

// Chat sends a word every millisecond and reads the answers.
func (r *Raider) Chat(network string, to netip.AddrPort) *Chatter {
	r.T.Helper()
	c := &Chatter{Conn: r.MustDial(network, to), Ended: make(chan struct{})}
	go func() {
		buf := make([]byte, 4096)
		for {
			if _, err := c.Conn.Read(buf); err != nil && (network == "tcp" || errors.Is(err, net.ErrClosed)) {
				return
			} else if err == nil {
				c.Heard.Store(time.Now().UnixNano())
				c.Count.Add(1)
			}
		}
	}()
	go func() {
		defer close(c.Ended)
		pace := time.NewTicker(time.Millisecond)
		defer pace.Stop()
		for !c.stop.Load() {
			if _, err := c.Conn.Write([]byte("still there\n")); err != nil && network == "tcp" {
				return
			}
			<-pace.C
		}
	}()
	r.T.Cleanup(func() {
		c.stop.Store(true)
		c.Conn.Close()
		<-c.Ended
	})
	r.Until(fmt.Sprintf("%s to %v answers", network, to), func() bool { return c.Count.Load() > 3 })
	return c
}

// InNamespace runs f in a network namespace. The sockets it opens stay there.
func InNamespace(pin *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if err := unix.Setns(int(pin.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
