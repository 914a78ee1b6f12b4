package testnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is the kind of an entry.
type Kind string

// The kinds.
const (
	Connection Kind = "connection" // an accepted TCP connection
	Datagram   Kind = "datagram"   // a UDP datagram, DNS excepted
	Request    Kind = "request"    // an HTTP request, encrypted or not
	Query      Kind = "query"      // a DNS query
)

// Received is the record of a connection, datagram, request or query that a server received.
type Received struct {
	Time   time.Time
	Kind   Kind
	Addr   netip.AddrPort // where it was received
	Remote netip.AddrPort // the sender

	SNI   string   // server name of the ClientHello, for connections and requests over TLS
	ALPN  []string // protocols that the ClientHello offered
	First []byte   // first bytes of a connection (up to 1 KiB, undecrypted) or datagram

	Proto   string      // "HTTP/1.1" or "HTTP/2.0"
	Method  string      // of a request
	Host    string      // Host or :authority of a request
	Target  string      // request target, query included
	Header  http.Header // of a request
	Trailer http.Header // of a request whose body was read to its end
	Body    int64       // bytes of the request's body read so far

	Name string // queried name, lower case, without the final dot
	Type string // queried type, such as "AAAA"
}

// Filter selects entries.
type Filter func(Received) bool

// Any selects everything.
func Any(Received) bool { return true }

// Of selects one kind.
func Of(k Kind) Filter { return func(r Received) bool { return r.Kind == k } }

// Path selects the requests for a path with any query.
func Path(path string) Filter {
	return func(r Received) bool {
		p, _, _ := strings.Cut(r.Target, "?")
		return r.Kind == Request && p == path
	}
}

// Port selects the entries received on a port.
func Port(port uint16) Filter { return func(r Received) bool { return r.Addr.Port() == port } }

// maxReceived bounds the number of entries; the oldest are dropped.
const maxReceived = 1 << 16

// recorder keeps entries. Safe for concurrent use.
type recorder struct {
	mu      sync.Mutex
	entries []*Received
	changed chan struct{} // closed and replaced at each change
}

// add keeps an entry; change may alter it later.
func (r *recorder) add(e Received) *Received {
	e.Time = time.Now()
	entry := &e
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) >= maxReceived {
		r.entries = append([]*Received(nil), r.entries[maxReceived/4:]...)
	}
	r.entries = append(r.entries, entry)
	r.notifyLocked()
	return entry
}

func (r *recorder) change(e *Received, f func(*Received)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(e)
	r.notifyLocked()
}

func (r *recorder) notifyLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// matching returns copies of the entries selected, and a channel that is closed at the next change.
func (r *recorder) matching(match Filter) ([]Received, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Received
	for _, e := range r.entries {
		if match(*e) {
			out = append(out, *e)
		}
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return out, r.changed
}

func (r *recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = nil
}

// Received returns the entries of a host that all filters select, oldest first. The host is a name (with all addresses
// it has or had) or an address; "" is every host. A connection and each request on it are separate entries.
func (n *Net) Received(host string, filters ...Filter) []Received {
	out, _ := n.records.matching(n.matcher(host, filters))
	return out
}

// Await returns as soon as a host has received count entries that all filters select, or with an error when ctx ends.
func (n *Net) Await(ctx context.Context, host string, count int, filters ...Filter) ([]Received, error) {
	for {
		out, changed := n.records.matching(n.matcher(host, filters))
		if len(out) >= count {
			return out, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return out, fmt.Errorf("%s received %d of %d: %w", host, len(out), count, ctx.Err())
		}
	}
}

// Queries returns the DNS queries for a name, or every query for "".
func (n *Net) Queries(name string) []Received {
	return n.Received("", Of(Query), func(r Received) bool { return name == "" || r.Name == canonical(name) })
}

// Forget drops everything received so far.
func (n *Net) Forget() { n.records.forget() }

// Renew prepares the internet for another test: it resets every connection and drops all records and counts.
func (n *Net) Renew() {
	n.conns.reset(func(*recordedConn) bool { return true })
	n.records.forget()
	n.packets.forget()
}

// Edits returns the names that were added or changed since New or [Net.Restore], and whether each is one of the predefined
// hosts. Servers added to a host are no edit.
func (n *Net) Edits() map[string]bool { return n.zone.edits() }

// Restore closes the servers added since New, removes the names and addresses added and restores the predefined names. It waits for
// the handlers of the servers. Whoever resolved a changed name before may still use the answer until it expires.
func (n *Net) Restore() error {
	err := n.closeAdded()
	n.zone.restore()
	return errors.Join(err, n.unroute())
}

func (n *Net) matcher(host string, filters []Filter) Filter {
	addrs := n.zone.everOf(host)
	return func(r Received) bool {
		if host != "" && !addrs[r.Addr.Addr()] {
			return false
		}
		for _, f := range filters {
			if f != nil && !f(r) {
				return false
			}
		}
		return true
	}
}

// Packets returns the packets that reached a host, of any protocol, if [Options.Capture] was set. The host is a name or
// an address; "" is every host.
func (n *Net) Packets(host string) []Packet {
	if host == "" {
		return n.packets.to(nil)
	}
	addrs := n.zone.everOf(host)
	if addrs == nil {
		return nil
	}
	return n.packets.to(addrs)
}

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
