package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
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
	return inNamespace(r.Pin, f)
}

// Dial connects from within the box.
func (r *Raider) Dial(network string, to netip.AddrPort) (c net.Conn, err error) {
	err = r.Inside(func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err = d.DialContext(context.Background(), network, to.String())
		return err
	})
	if err == nil {
		r.T.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return c, err
}

// MustDial is [Raider.Dial] for a connection that must succeed.
func (r *Raider) MustDial(network string, to netip.AddrPort) net.Conn {
	r.T.Helper()
	c, err := r.Dial(network, to)
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

// Try connects by TCP, or sends a datagram and waits for an answer, and returns the result.
func (r *Raider) Try(network string, to netip.AddrPort) string {
	c, err := r.Dial(network, to)
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
	return Saw(err)
}
