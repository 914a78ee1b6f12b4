package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/policy"
)

// capturedWorld is newWorld with every packet counted that leaves the gateway's host. ICMP errors are not limited, so
// that each refusal can be seen.
func capturedWorld(t *testing.T, change func(*config.Config)) *world {
	t.Helper()
	w := capturedStopped(t, change)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// capturedStopped is capturedWorld without the gateway started.
func capturedStopped(t *testing.T, change func(*config.Config)) *world {
	t.Helper()
	w := stoppedWorld(t, lab.Options{Change: change, Net: testnet.Options{Capture: true}})
	err := w.Net.Gateway().Do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv6/icmp/ratelimit", []byte("0"), 0))
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// on is the world with its failures reported to a subtest.
func (w *world) on(t *testing.T) *world {
	other := *w
	other.t = t
	return &other
}

// settle returns when whatever the gateway's host has sent out so far is counted.
func (w *world) settle() {
	w.t.Helper()
	mark := netip.MustParseAddr("198.51.100.250")
	seen := func() (n int) {
		for _, p := range w.Net.Packets(mark.String()) {
			n += p.Count
		}
		return n
	}
	before := seen()
	c, err := w.Net.Gateway().DialContext(w.t.Context(), "udp", netip.AddrPortFrom(mark, 9).String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("mark")); err != nil {
		w.t.Fatal(err)
	}
	w.until("the marker arrives", func() bool { return seen() > before })
}

// until waits for a condition that something else brings about.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	w.untilEvery(time.Millisecond, what, holds)
}

// untilEvery is until for a condition that is not to be asked for too often.
func (w *world) untilEvery(pace time.Duration, what string, holds func() bool) {
	w.t.Helper()
	deadline := time.After(20 * time.Second)
	look := time.NewTicker(pace)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-deadline:
			w.t.Fatalf("did not happen: %s", what)
		}
	}
}

// untouched fails the test if any packet has reached one of the addresses.
func (w *world) untouched(addrs ...netip.Addr) {
	w.t.Helper()
	w.settle()
	for _, a := range addrs {
		for _, p := range w.Net.Packets(a.String()) {
			w.t.Errorf("%v received %+v", a, p)
		}
		w.nothingReached(a.String())
	}
}

// denial waits for a denying decision about an address; port 0 is any port.
func (w *world) denial(box string, stage policy.Stage, to netip.Addr, port uint16, reason policy.Reason) audit.Event {
	w.t.Helper()
	e := w.event(box, func(e audit.Event) bool { return e.Stage == stage && e.Addr == to && (port == 0 || e.Port == port) })
	if e.Verdict != policy.Deny || e.Reason != reason {
		w.t.Errorf("%v port %d: want %s, decision: %s", to, port, reason, audit.Line(e))
	}
	return e
}

// denialOf waits for a denying decision about a name.
func (w *world) denialOf(box string, stage policy.Stage, name string, reason policy.Reason) audit.Event {
	w.t.Helper()
	return w.event(box, func(e audit.Event) bool {
		return e.Stage == stage && e.Name == name && e.Verdict == policy.Deny && e.Reason == reason
	})
}

// raider works in the network namespace of a box, with the raw sockets that the box itself cannot have.
type raider struct {
	*world
	box        string
	pin        *os.File // the namespace
	v4, v6     netip.Addr
	link       int              // index of eth0
	mac, other net.HardwareAddr // of eth0, and of the gateway's end
	fd         int              // packet socket
}

// raid begins to work in a box.
func (w *world) raid(box string) *raider {
	w.t.Helper()
	kind := "netns"
	if _, ok := w.foreign.Load(box); ok {
		kind = "attached"
	}
	pin, err := os.Open(filepath.Join(lab.RunDir(w.Dir), kind, box))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { pin.Close() })
	r := &raider{world: w, box: box, pin: pin}
	if err := errors.Join(r.learn(), r.inside(r.openPackets)); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { unix.Close(r.fd) })
	return r
}

// learn reads the addresses of both ends of the link.
func (r *raider) learn() error {
	h, err := netlink.NewHandleAt(netns.NsHandle(r.pin.Fd()))
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	r.link, r.mac = link.Attrs().Index, link.Attrs().HardwareAddr
	addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ip.Is4() {
			r.v4 = ip
		} else {
			r.v6 = ip
		}
	}
	neighbours, err := h.NeighList(r.link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, n := range neighbours {
		if n.State == netlink.NUD_PERMANENT {
			r.other = n.HardwareAddr
		}
	}
	if !r.v4.IsValid() || !r.v6.IsValid() || r.other == nil {
		return fmt.Errorf("box %s: addresses %v %v, gateway at %v", r.box, r.v4, r.v6, r.other)
	}
	return nil
}

// own is the box's address of a family.
func (r *raider) own(like netip.Addr) netip.Addr {
	if like.Is4() {
		return r.v4
	}
	return r.v6
}

// inside runs f in the namespace; the sockets it opens stay there.
func (r *raider) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(r.pin.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// dial connects from within the box.
func (r *raider) dial(network string, to netip.AddrPort) (c net.Conn, err error) {
	err = r.inside(func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err = d.DialContext(context.Background(), network, to.String())
		return err
	})
	if err == nil {
		r.t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return c, err
}

// mustDial is dial for a connection that must come about.
func (r *raider) mustDial(network string, to netip.AddrPort) net.Conn {
	r.t.Helper()
	c, err := r.dial(network, to)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// What a program in the box sees of a destination.
const (
	sawReset      = "reset"      // TCP: connection refused or reset
	sawProhibited = "prohibited" // ICMP: administratively prohibited
	sawNothing    = "nothing"    // silence
)

// saw puts an error into words.
func saw(err error) string {
	switch {
	case err == nil:
		return "success"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return sawReset
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EACCES):
		return sawProhibited
	case errors.Is(err, os.ErrDeadlineExceeded):
		return sawNothing
	}
	return err.Error()
}

// try tells what a program sees that connects by TCP, or sends a datagram and waits for the answer.
func (r *raider) try(network string, to netip.AddrPort) string {
	c, err := r.dial(network, to)
	if err != nil {
		return saw(err)
	}
	defer c.Close()
	if network == "tcp" {
		return saw(nil)
	}
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, "anybody there?"); err != nil {
		return saw(err)
	}
	_, err = c.Read(make([]byte, 64))
	return saw(err)
}
