package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/e2e/machines/orders"
)

const (
	nicName   = "eth0"
	maxHeard  = 4096    // frames
	maxAnswer = 1 << 16 // bytes of a response
)

// machine carries out orders, one after the other.
type machine struct {
	nic            netlink.Link
	plain, offload int // packet sockets: frames, and frames with the header of virtio
	conns          map[string]net.Conn

	mu    sync.Mutex
	heard [][]byte // the first frames that have arrived
}

// newMachine waits for the interface, and starts to record the frames that arrive.
func newMachine() (*machine, error) {
	m := &machine{conns: map[string]net.Conn{}}
	var err error
	if m.nic, err = await("the interface", func() (netlink.Link, error) { return netlink.LinkByName(nicName) }); err != nil {
		return nil, err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, err
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // in network order
	if m.plain, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(all)); err != nil {
		return nil, err
	}
	if err := unix.Bind(m.plain, &unix.SockaddrLinklayer{Protocol: all, Ifindex: m.nic.Attrs().Index}); err != nil {
		return nil, err
	}
	if m.offload, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); err != nil {
		return nil, err
	}
	go m.listen()
	return m, unix.SetsockoptInt(m.offload, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
}

// listen records arriving frames.
func (m *machine) listen() {
	b := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(m.plain, b, 0)
		if err != nil {
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
				continue
			}
			return
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		m.mu.Lock()
		if len(m.heard) < maxHeard {
			m.heard = append(m.heard, bytes.Clone(b[:n]))
		}
		m.mu.Unlock()
	}
}

// do carries out an order.
func (m *machine) do(o orders.Order) (a orders.Answer, err error) {
	switch o.Kind {
	case orders.Configure:
		now := unix.NsecToTimeval(o.Clock.UnixNano())
		if err := unix.Settimeofday(&now); err != nil {
			return a, err
		}
		a.Network, err = m.configure(o.Static)
	case orders.Fetch:
		a.Status, a.Text, err = fetch(o)
	case orders.Resolve:
		err = resolve(o, &a)
	case orders.Open:
		var c net.Conn
		if c, err = net.DialTimeout(o.Network, o.Address, patience); err == nil {
			m.conns[o.Name] = c
		}
	case orders.Exchange, orders.Await:
		a.Text, err = m.exchange(o)
	case orders.Send:
		err = m.send(o)
	case orders.Heard:
		m.mu.Lock()
		a.Frames, m.heard = m.heard, nil
		m.mu.Unlock()
	default:
		err = fmt.Errorf("unknown order %q", o.Kind)
	}
	return a, err
}

// fetch requests a URL over a connection of its own.
func fetch(o orders.Order) (status int, body string, err error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(o.Roots))
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, o.Network, address)
		},
	}}
	resp, err := client.Get(o.URL)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, string(b), err
}

// resolve asks a server about the addresses of a name.
func resolve(o orders.Order, a *orders.Answer) error {
	client := &dns.Client{Net: o.Network, Timeout: patience}
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		answer, _, err := client.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(o.Name), kind), o.Address)
		if err != nil {
			return err
		}
		a.Status = answer.Rcode
		for _, r := range answer.Answer {
			switch r := r.(type) {
			case *dns.A:
				a.Addrs = append(a.Addrs, parse(r.A))
			case *dns.AAAA:
				a.Addrs = append(a.Addrs, parse(r.AAAA))
			}
		}
	}
	return nil
}

// exchange uses a connection.
func (m *machine) exchange(o orders.Order) (string, error) {
	c := m.conns[o.Name]
	if c == nil {
		return "", os.ErrNotExist
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if o.Kind == orders.Await {
		b, err := io.ReadAll(io.LimitReader(c, maxAnswer))
		return string(b), err
	}
	if _, err := io.WriteString(c, o.Text); err != nil {
		return "", err
	}
	b := make([]byte, len(o.Text))
	n, err := io.ReadFull(c, b)
	return string(b[:n]), err
}

// send sends frames.
func (m *machine) send(o orders.Order) error {
	if o.MTU != 0 {
		usual, err := netlink.LinkByName(nicName)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(m.nic, o.MTU); err != nil {
			return err
		}
		defer func() { _ = netlink.LinkSetMTU(m.nic, usual.Attrs().MTU) }()
	}
	fd := m.plain
	if o.Header {
		fd = m.offload
	}
	for i, f := range o.Frames {
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: m.nic.Attrs().Index}); err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
	}
	return nil
}
