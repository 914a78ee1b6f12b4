package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/selftest/packet"
)

// link sends frames on the box's interface and reads the answers. Safe for concurrent use.
type link struct {
	file    *os.File
	raw     syscall.RawConn
	index   int
	own     net.HardwareAddr
	gateway net.HardwareAddr
	tasks   []Task

	mu      sync.Mutex
	answers map[int]chan Answer
}

// openLink finds the interface of the default route and its next hop. Reading begins before the first frame is sent.
func openLink(tasks []Task) (*link, error) {
	l := &link{tasks: tasks, answers: map[int]chan Answer{}}
	for _, t := range tasks {
		l.answers[t.ID] = make(chan Answer, 1)
	}
	if err := l.findWayOut(); err != nil {
		return nil, err
	}
	protocol := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	l.file = os.NewFile(uintptr(fd), "link")
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: l.index}); err != nil {
		return nil, errors.Join(err, l.file.Close())
	}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, l.file.Close())
	}
	go l.read()
	return l, nil
}

func (l *link) close() { _ = l.file.Close() }

// findWayOut reads the default route and the address of its next hop.
func (l *link) findWayOut() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			return fmt.Errorf("the box's routes: %w", err)
		}
		for _, r := range routes {
			if r.Gw == nil || r.Dst != nil && !r.Dst.IP.IsUnspecified() {
				continue
			}
			l.index = r.LinkIndex
			neighbours, err := netlink.NeighList(r.LinkIndex, family)
			if err != nil {
				return fmt.Errorf("the box's neighbours: %w", err)
			}
			for _, n := range neighbours {
				if n.IP.Equal(r.Gw) && len(n.HardwareAddr) == 6 {
					l.gateway = n.HardwareAddr
				}
			}
		}
	}
	if l.index == 0 || l.gateway == nil {
		return errors.New("the box has no default route with a known neighbour")
	}
	dev, err := netlink.LinkByIndex(l.index)
	if err != nil {
		return fmt.Errorf("the box's interface: %w", err)
	}
	l.own = dev.Attrs().HardwareAddr
	return nil
}

// send sends a task's packets and waits for an answer to one of them.
func (l *link) send(t Task) Answer {
	for _, packet := range t.Data {
		frame := append(append([]byte(nil), l.gateway...), l.own...)
		frame = binary.BigEndian.AppendUint16(frame, t.EtherType)
		frame = append(frame, packet...)
		for len(frame) < 60 { // minimum size of an Ethernet frame
			frame = append(frame, 0)
		}
		if _, err := l.file.Write(frame); err != nil {
			return Answer{Outcome: Failed, Error: err.Error()}
		}
	}
	select {
	case a := <-l.answers[t.ID]:
		return a
	case <-time.After(wait):
		return Answer{Outcome: Silent}
	}
}

// read assigns received packets to tasks by their tokens until the link is closed.
func (l *link) read() {
	buf := make([]byte, maxAnswer)
	for {
		var n int
		var from unix.Sockaddr
		err := l.raw.Read(func(fd uintptr) bool {
			var err error
			n, from, err = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		if err != nil {
			return
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok || n < 14 || ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		p, ok := packet.Read(buf[14:n])
		if !ok {
			continue
		}
		for _, t := range l.tasks {
			if len(t.Token) > 0 && bytes.Contains(buf[14:n], t.Token) {
				l.answered(t.ID, p)
			}
		}
	}
}

func (l *link) answered(id int, p packet.Packet) {
	a := Answer{Outcome: Answered}
	if p.Proto == unix.IPPROTO_ICMP && p.Kind == 3 || p.Proto == unix.IPPROTO_ICMPV6 && p.Kind == 1 {
		a.Outcome = Refused // destination unreachable
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.answers[id] <- a:
	default: // the first answer is enough
	}
}

// maxAnswer bounds the reported bytes of an answer.
const maxAnswer = 2048

// sendSocket runs a task with ordinary sockets.
func sendSocket(t Task) Answer {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, string(t.Kind), t.To.String())
	if err != nil {
		return failure(err, Failed)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait))
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true) // each piece is sent as its own segment
	}
	for _, piece := range t.Data {
		if _, err := conn.Write(piece); err != nil {
			return failure(err, Closed)
		}
	}
	buf := make([]byte, maxAnswer)
	n, err := conn.Read(buf)
	switch {
	case n > 0:
		return Answer{Outcome: Answered, Data: buf[:n]}
	case t.Kind == UDP:
		return failure(err, Failed)
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return Answer{Outcome: Closed}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Answer{Outcome: Open}
	default:
		return failure(err, Closed)
	}
}

// refusals are the errors that a reset or an ICMP error causes.
var refusals = []error{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.EACCES, unix.EPERM, unix.ECONNRESET, unix.ENOPROTOOPT, unix.EHOSTDOWN}

// failure classifies an error: refusals and timeouts are ordinary outcomes.
func failure(err error, otherwise Outcome) Answer {
	var timeout net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return Answer{Outcome: Silent}
	}
	if otherwise == Failed {
		for _, r := range refusals {
			if errors.Is(err, r) {
				return Answer{Outcome: Refused}
			}
		}
	}
	return Answer{Outcome: otherwise, Error: err.Error()}
}
