package testnet

import (
	"errors"
	"io"
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// serveEcho accepts TCP connections, sends the banner if it is not empty, and echoes the bytes it receives.
func (n *servers) serveEcho(at netip.AddrPort, banner string) error {
	ln, err := n.listen(at)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, ln)
	n.running.Go(func() {
		for {
			c, err := recorded{ln, n.records, n.conns}.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				n.logf("test internet: %v: %v", at, err)
				continue
			}
			n.running.Go(func() {
				defer c.Close()
				if _, err := io.WriteString(c, banner); err == nil {
					_, _ = io.Copy(c, c)
				}
			})
		}
	})
	return nil
}

// serveUDP echoes every datagram from the address that it was sent to.
func (n *servers) serveUDP(at netip.AddrPort) error {
	pc, err := n.listenPacket(at)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, pc)
	echo, err := newDatagrams(pc, at.Addr().Is4())
	if err != nil {
		return err
	}
	n.running.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			size, dst, from, err := echo.read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				n.logf("test internet: %v: %v", at, err)
				continue
			}
			n.records.add(Received{
				Kind: Datagram, Addr: netip.AddrPortFrom(dst, at.Port()), Remote: addrPort(from),
				First: append([]byte(nil), buf[:min(size, maxFirst)]...),
			})
			if err := echo.write(buf[:size], dst, from); err != nil {
				n.logf("test internet: %v: %v", at, err)
			}
		}
	})
	return nil
}

// datagrams reads and writes UDP on a socket bound to every address, with the local address of each datagram.
type datagrams struct {
	read  func(p []byte) (n int, dst netip.Addr, from net.Addr, err error)
	write func(p []byte, src netip.Addr, to net.Addr) error
}

func newDatagrams(pc net.PacketConn, v4 bool) (datagrams, error) {
	if v4 {
		c := ipv4.NewPacketConn(pc)
		return datagrams{
			read: func(p []byte) (int, netip.Addr, net.Addr, error) {
				n, cm, from, err := c.ReadFrom(p)
				if err != nil || cm == nil {
					return n, netip.Addr{}, from, err
				}
				dst, _ := netip.AddrFromSlice(cm.Dst.To4())
				return n, dst, from, nil
			},
			write: func(p []byte, src netip.Addr, to net.Addr) error {
				_, err := c.WriteTo(p, &ipv4.ControlMessage{Src: src.AsSlice()}, to)
				return err
			},
		}, c.SetControlMessage(ipv4.FlagDst, true)
	}
	c := ipv6.NewPacketConn(pc)
	return datagrams{
		read: func(p []byte) (int, netip.Addr, net.Addr, error) {
			n, cm, from, err := c.ReadFrom(p)
			if err != nil || cm == nil {
				return n, netip.Addr{}, from, err
			}
			dst, _ := netip.AddrFromSlice(cm.Dst)
			return n, dst, from, nil
		},
		write: func(p []byte, src netip.Addr, to net.Addr) error {
			_, err := c.WriteTo(p, &ipv6.ControlMessage{Src: src.AsSlice()}, to)
			return err
		},
	}, c.SetControlMessage(ipv6.FlagDst, true)
}
