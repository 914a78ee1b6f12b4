// Package dhcp configures the network of one virtual machine on a link: DHCP, router advertisements and DHCPv6. It answers
// only the hardware address of that machine, and always with the same addresses, so that it remembers nothing about clients.
//
// It reads frames before the filter of the link, which drops them, so that they do not reach the stack of the host.
package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Client is the one client of a link, and the configuration that it gets.
type Client struct {
	MAC, Host net.HardwareAddr // of the client and of the gateway's end
	V4, V6    netip.Addr
	Bits      int        // length of the prefix of V4, which contains Gateway
	Gateway   netip.Addr // router, DHCP server and DNS server
	DNS6      netip.Addr
	Router    netip.Addr // link-local, source of router advertisements
	MTU       int
}

// Lifetimes. Clients renew after half the lease; advertisements repeat well before the router's lifetime ends, so that the
// gateway may be down for a while.
const (
	lease          = 24 * time.Hour
	routerLifetime = 9000 * time.Second // the maximum (RFC 4861, section 6.2.1)
	advertiseEvery = 20 * time.Minute
)

// Bounds of one client: frames that it sends faster are dropped by the kernel when the buffer of the socket is full.
const (
	framesPerSecond = 20
	burst           = 20
	maxFrame        = 2048
	socketBuffer    = 32 << 10
)

// Server answers a client until it is closed.
type Server struct {
	client Client
	index  int
	socket *os.File
	stop   context.CancelFunc
	done   chan struct{}
}

// Listen starts a server on an interface of the namespace of the calling thread.
func Listen(index int, c Client) (*Server, error) {
	socket, err := open(index, c)
	if err != nil {
		return nil, fmt.Errorf("DHCP: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{client: c, index: index, socket: socket, stop: cancel, done: make(chan struct{})}
	go s.serve(ctx)
	return s, nil
}

// Index returns the index of the interface.
func (s *Server) Index() int { return s.index }

// Close stops the server, and returns when it has stopped.
func (s *Server) Close() error {
	s.stop()
	err := s.socket.Close()
	<-s.done
	return err
}

// open opens a socket that receives only frames for a server from the client on the interface.
func open(index int, c Client) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: no frame before bind
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "DHCP")
	code, err := bpf.Assemble(filterOf(c.MAC))
	if err == nil {
		program := make([]unix.SockFilter, len(code))
		for i, in := range code {
			program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
		}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}) //nolint:gosec // short
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
	}
	if err == nil {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// filterOf returns the filter of the socket: frames that arrive, without a VLAN tag, from the client, for UDP port 67 over
// IPv4 without options, UDP port 547 over IPv6, or router solicitations.
func filterOf(mac net.HardwareAddr) []bpf.Instruction {
	ins := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: drop},
		bpf.LoadExtension{Num: bpf.ExtVLANTagPresent}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: drop},
		bpf.LoadAbsolute{Off: 6, Size: 4}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(mac), SkipTrue: drop},
		bpf.LoadAbsolute{Off: 10, Size: 2}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(binary.BigEndian.Uint16(mac[4:])), SkipTrue: drop},
		bpf.LoadAbsolute{Off: 12, Size: 2}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 7},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: drop},
		bpf.LoadAbsolute{Off: 14, Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x45, SkipTrue: drop},
		bpf.LoadAbsolute{Off: 23, Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: drop},
		bpf.LoadAbsolute{Off: 36, Size: 2}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: portServer4, SkipTrue: take, SkipFalse: drop},
		bpf.LoadAbsolute{Off: 20, Size: 1}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: drop},
		bpf.LoadAbsolute{Off: 54, Size: 1}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: routerSolicitation, SkipTrue: take, SkipFalse: drop},
		bpf.LoadAbsolute{Off: 56, Size: 2}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: portServer6, SkipTrue: take, SkipFalse: drop},
		bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: maxFrame},
	}
	for i, in := range ins { // jumps to the two results, the last instructions
		if j, ok := in.(bpf.JumpIf); ok {
			to := func(skip uint8) uint8 {
				switch skip {
				case drop:
					return uint8(len(ins) - 2 - i - 1) //nolint:gosec // short
				case take:
					return uint8(len(ins) - 1 - i - 1) //nolint:gosec // short
				}
				return skip
			}
			j.SkipTrue, j.SkipFalse = to(j.SkipTrue), to(j.SkipFalse)
			ins[i] = j
		}
	}
	return ins
}

// Marks for jumps in filterOf.
const (
	drop = 254
	take = 255
)

// serve answers frames at a bounded rate, and advertises the router now and then.
func (s *Server) serve(ctx context.Context) {
	defer close(s.done)
	limit := rate.NewLimiter(framesPerSecond, burst)
	b := make([]byte, maxFrame)
	next := time.Now()
	for {
		if !time.Now().Before(next) {
			s.send(s.client.advertisement(allNodes))
			next = time.Now().Add(advertiseEvery)
		}
		if limit.Wait(ctx) != nil || s.socket.SetReadDeadline(next) != nil {
			return
		}
		n, err := s.socket.Read(b)
		switch {
		case err == nil:
			s.send(s.client.Answer(b[:n]))
		case ctx.Err() != nil || errors.Is(err, os.ErrClosed):
			return
		}
		// Otherwise it is time for an advertisement, or the interface is down.
	}
}

// send sends a frame; nil: no frame. One that the interface does not take is lost, as on a wire.
func (s *Server) send(frame []byte) {
	if frame != nil {
		_, _ = s.socket.Write(frame)
	}
}
