// Package watch detects on the host whether packets of a self-test got through: on the interfaces, and at listeners
// that no box may reach.
package watch

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/selftest/packet"
)

// tokenDigits are the hexadecimal digits of a task's number in its token.
const tokenDigits = 4

// Token returns the byte string that marks the packets of a task.
func Token(prefix []byte, task int) []byte {
	return fmt.Appendf(nil, "%s%0*x", prefix, tokenDigits, task)
}

// Sighting is a packet of a probe outside of the box's interface.
type Sighting struct {
	Link  int
	To    netip.AddrPort // destination
	Task  int            // task of the token in the packet, -1 if it has no token
	First netip.AddrPort // for a connection request of the box: its destination when it left the box
}

// Wire watches all interfaces of the host. A packet of the box on any interface except the box's own has got through.
// Packets are recognised by the token in their payload. A connection request has no payload and is recognised by its
// sequence number, which address translation preserves. A packet to an address that only probes send to is recognised
// by that address, even if the gateway sent it.
type Wire struct {
	box    int    // index of the box's interface
	prefix []byte // of every token
	file   *os.File
	conn   syscall.RawConn
	ended  chan struct{}

	mu        sync.Mutex
	requests  map[uint32]netip.AddrPort // connection requests of the box, by sequence number
	watched   map[netip.Addr]bool
	sightings []Sighting
}

// snap is the number of bytes read of each packet: the token of a ClientHello is far into it.
const snap = 2048

// OpenWire starts watching. watched are addresses that only probes send to.
func OpenWire(box int, prefix []byte, watched []netip.Addr) (*Wire, error) {
	w := &Wire{box: box, prefix: prefix, ended: make(chan struct{}), requests: map[uint32]netip.AddrPort{}, watched: map[netip.Addr]bool{}}
	for _, a := range watched {
		w.watched[a] = true
	}
	protocol := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("watching the host's interfaces: %w", err)
	}
	w.file = os.NewFile(uintptr(fd), "wire")
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol}))
	if err == nil {
		w.conn, err = w.file.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watching the host's interfaces: %w", err), w.file.Close())
	}
	go w.read()
	return w, nil
}

// Close stops watching. It returns the packets seen, and the number that the kernel dropped because too many came.
func (w *Wire) Close() (seen []Sighting, missed int, err error) {
	var stats *unix.TpacketStats
	ctlErr := w.conn.Control(func(fd uintptr) {
		stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	err = errors.Join(err, ctlErr, w.file.Close())
	<-w.ended
	if err != nil {
		return nil, 0, fmt.Errorf("watching the host's interfaces: %w", err)
	}
	return w.sightings, int(stats.Drops), nil
}

func (w *Wire) read() {
	defer close(w.ended)
	buf := make([]byte, snap)
	for {
		var n int
		var from unix.Sockaddr
		var readErr error
		err := w.conn.Read(func(fd uintptr) bool {
			n, from, readErr = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(readErr, unix.EAGAIN)
		})
		if err != nil {
			return
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && readErr == nil {
			w.inspect(ll, buf[:n])
		}
	}
}

// inspect records a packet if it belongs to a probe. On the box's own interface only packets from the box are recorded.
func (w *Wire) inspect(ll *unix.SockaddrLinklayer, b []byte) {
	p, ok := packet.Read(b)
	if !ok {
		return
	}
	request := p.Proto == unix.IPPROTO_TCP && p.Flags&(packet.SYN|packet.ACK) == packet.SYN
	w.mu.Lock()
	defer w.mu.Unlock()
	if ll.Ifindex == w.box {
		if request && ll.Pkttype != unix.PACKET_OUTGOING {
			w.requests[p.Seq] = p.Dst
		}
		return
	}
	s := Sighting{Link: ll.Ifindex, To: p.Dst, Task: w.token(b)}
	if request {
		s.First = w.requests[p.Seq]
	}
	if s.Task >= 0 || s.First.IsValid() || w.watched[p.Dst.Addr()] {
		w.sightings = append(w.sightings, s)
	}
}

// token returns the task whose token a packet carries, or -1. DNS servers may change the case of letters in names
// (0x20).
func (w *Wire) token(b []byte) int {
	b = lower(b)
	at := bytes.Index(b, w.prefix)
	if at < 0 || len(b) < at+len(w.prefix)+tokenDigits {
		return -1
	}
	id, err := hex.DecodeString(string(b[at+len(w.prefix) : at+len(w.prefix)+tokenDigits]))
	if err != nil {
		return -1
	}
	return int(binary.BigEndian.Uint16(id))
}

// lower is bytes.ToLower for binary data: it changes ASCII letters only.
func lower(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] = c | 0x20
		}
	}
	return out
}

// LinkName returns the name of an interface, or its index if it has none.
func LinkName(index int) string {
	if i, err := net.InterfaceByIndex(index); err == nil {
		return i.Name
	}
	return fmt.Sprintf("interface %d", index)
}
