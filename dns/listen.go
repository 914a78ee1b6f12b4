package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketsPerAddress is the number of sockets that share one address. More sockets use more processors, and fewer boxes
// share each of them.
const socketsPerAddress = 8

// ListenUDP opens the sockets that together receive the packets to one address. All queries of a box arrive on the same
// socket, chosen by the box's address, so a box that fills its socket's queue affects only the boxes that share that
// socket. Serve each with [Server.ServeUDP].
func ListenUDP(ctx context.Context, lc net.ListenConfig, address netip.AddrPort) ([]net.PacketConn, error) {
	// The first socket is bound without SO_REUSEPORT, so that binding fails if another program uses the address.
	first, err := lc.ListenPacket(ctx, "udp", address.String())
	if err != nil {
		return nil, err
	}
	opened := []net.PacketConn{first}
	lc.Control = withReusePort(lc.Control)
	err = control(first.(*net.UDPConn), setReusePort)
	for err == nil && len(opened) < socketsPerAddress {
		var pc net.PacketConn
		if pc, err = lc.ListenPacket(ctx, "udp", first.LocalAddr().String()); err == nil {
			opened = append(opened, pc)
		}
	}
	if err == nil {
		err = control(first.(*net.UDPConn), func(fd int) error { return balanceBySource(fd, address.Addr().Is4()) })
	}
	if err != nil {
		for _, pc := range opened {
			pc.Close()
		}
		return nil, fmt.Errorf("share %s among sockets: %w", address, err)
	}
	return opened, nil
}

// setReusePort lets other sockets of this user bind to the same address.
func setReusePort(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }

// withReusePort returns a control function that calls setReusePort, then also if it is not nil.
func withReusePort(also func(network, address string, c syscall.RawConn) error) func(network, address string, c syscall.RawConn) error {
	return func(network, address string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) { err = setReusePort(int(fd)) })
		if err = errors.Join(ctlErr, err); err == nil && also != nil {
			err = also(network, address, c)
		}
		return err
	}
}

// Offsets of the last word of a packet's source address. SKF_NET_OFF makes the kernel count from the network header;
// without it the program sees only the payload.
const (
	netOffset = 0xfff00000 // SKF_NET_OFF, linux/filter.h
	sourceV4  = netOffset + 12
	sourceV6  = netOffset + 8 + 12
)

// balanceBySource makes the kernel choose the socket by the last word of the source address. Boxes have consecutive
// addresses.
func balanceBySource(fd int, v4 bool) error {
	at := uint32(sourceV6)
	if v4 {
		at = sourceV4
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: socketsPerAddress},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// control calls f with the descriptor of a socket.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(ctlErr, err)
}
