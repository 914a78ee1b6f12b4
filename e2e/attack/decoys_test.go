package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestAttackHiddenAmongDecoys: a box that may reach any address hides one TCP connection in a burst of flows to other
// ports. The log and the API's stream still contain its destination, with its bytes, and every flow is counted.
func TestAttackHiddenAmongDecoys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		network string
		decoys  int
	}{{"udp", 400}, {"udp", 20000}, {"tcp", 20000}} {
		t.Run(fmt.Sprint(c.decoys, " ", c.network), func(t *testing.T) {
			t.Parallel()
			testHiddenAmongDecoys(t, c.network, c.decoys)
		})
	}
}

func testHiddenAmongDecoys(t *testing.T, network string, decoys int) {
	w := harness.NewWorld(t, func(c *config.Config) { c.Limits.KernelFlows = 40000 })
	stream := follow(w, "/v2/egress?follow=true")
	for family, to := range harness.AttackerAt(90) {
		hidden := echo(w, netip.AddrPortFrom(to, 7777)).at
		r := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}}))
		sendDecoys(r, network, harness.AttackerAt(91)[family], 10000, decoys/2)
		c := r.MustDial("tcp", hidden)
		if _, err := c.Write([]byte("the loot")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		c.Close()
		sendDecoys(r, network, harness.AttackerAt(91)[family], 10000+decoys/2, decoys/2)
		named := func(e audit.Event) bool {
			return e.Box == policy.BoxID(r.Box) && e.Protocol == policy.TCP && e.Addr == to && e.Port == hidden.Port() &&
				e.Verdict == policy.Allow
		}
		w.Until("the stream names the connection", func() bool { return stream.has(named) })
		w.Until("the log names the connection", func() bool {
			return strings.Contains(w.ReadLog(), fmt.Sprintf(`"box":"%s","stage":"kernel","protocol":"tcp","addr":"%v","port":7777,"verdict":"allow"`, r.Box, to))
		})
		w.Until("every flow is counted", func() bool { return stream.flows(r.Box) >= decoys+1 })
		if n := stream.flows(r.Box); n != decoys+1 {
			t.Errorf("the stream stands for %d of %d flows", n, decoys+1)
		}
	}
}

// TestAttackFlowsWhileTheGatewayIsDown: a box opens and closes connections while no gateway is running. The next
// gateway reports them, but does not repeat the ones reported by the previous gateway.
func TestAttackFlowsWhileTheGatewayIsDown(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	r := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}}))
	before, during := harness.AttackerAt(92), harness.AttackerAt(93)
	var old, brief [2]netip.AddrPort
	for family := range 2 {
		old[family] = echo(w, netip.AddrPortFrom(before[family], 7777)).at
		brief[family] = echo(w, netip.AddrPortFrom(during[family], 7777)).at
		r.MustDial("tcp", old[family])
	}
	told := func(at netip.AddrPort, proto policy.Protocol) func(audit.Event) bool {
		return func(e audit.Event) bool { return e.Protocol == proto && e.Addr == at.Addr() && e.Port == at.Port() }
	}
	for family := range 2 {
		w.Event(r.Box, told(old[family], policy.TCP))
	}
	begun := time.Now()
	w.Until("the connections are old", func() bool { return time.Since(begun) > 4*time.Second })
	w.Kill()
	for family := range 2 {
		r.MustDial("tcp", brief[family]).Close()
		sendDecoys(r, "udp", during[family], 4444, 1)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for family := range 2 {
		for _, e := range []audit.Event{
			w.Event(r.Box, told(brief[family], policy.TCP)),
			w.Event(r.Box, told(netip.AddrPortFrom(during[family], 4444), policy.UDP)),
		} {
			if e.Verdict != policy.Allow || e.Reason != name.ReasonAllowAll || e.Stage != policy.StageKernel {
				t.Errorf("the decision: %s", audit.Line(e))
			}
		}
		for _, e := range w.Events(r.Box) {
			if told(old[family], policy.TCP)(e) && e.Phase != audit.PhaseEnd {
				t.Errorf("told twice: %s", audit.Line(e))
			}
		}
	}
}

// sendDecoys sends to n ports of an address, starting with first.
func sendDecoys(r *harness.Raider, network string, to netip.Addr, first, n int) {
	r.T.Helper()
	err := r.Inside(func() error {
		if network == "tcp" {
			return decoysTCP(to, first, n)
		}
		c, err := net.ListenPacket("udp", netip.AddrPortFrom(r.Own(to), 0).String())
		if err != nil {
			return err
		}
		defer c.Close()
		for port := first; port < first+n; port++ {
			at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, uint16(port)))
			if _, err := c.WriteTo([]byte("decoy"), at); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.T.Fatal(err)
	}
}

// decoysTCP connects to closed ports. It runs on a thread in the box's namespace and makes the system calls itself:
// package net waits for each answer in another thread, which would make the test do most of the work.
func decoysTCP(to netip.Addr, first, n int) error {
	domain, addr := unix.AF_INET, func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Addr: to.As4(), Port: port} }
	if to.Is6() {
		domain, addr = unix.AF_INET6, func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Addr: to.As16(), Port: port} }
	}
	for port := first; port < first+n; port++ {
		fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 2) // gives up after 7 s
		if err == nil {
			err = unix.Connect(fd, addr(port))
		}
		unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("port %d: %w", port, err)
		}
	}
	return nil
}

// follower collects the events of an API stream.
type follower struct {
	mu     sync.Mutex
	events []audit.Event
	lost   []string // lines that are not decisions
}

// follow reads a stream until the test ends.
func follow(w *harness.World, path string) *follower {
	w.T.Helper()
	f := &follower{}
	ctx, cancel := context.WithCancel(w.T.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.Client.Lines(ctx, path, func(line []byte) error {
			var e audit.Event
			f.mu.Lock()
			defer f.mu.Unlock()
			if json.Unmarshal(line, &e) != nil || e.Time.IsZero() {
				f.lost = append(f.lost, string(line))
			} else {
				f.events = append(f.events, e)
			}
			return nil
		})
	}()
	w.T.Cleanup(func() {
		cancel()
		<-ended
	})
	return f
}

func (f *follower) has(match func(audit.Event) bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if match(e) {
			return true
		}
	}
	return false
}

// flows counts the started flows in the events of a box.
func (f *follower) flows(box string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if string(e.Box) == box && e.Stage == policy.StageKernel && e.Verdict == policy.Allow && e.Phase == audit.PhaseOpen {
			n += int(max(e.Count, 1))
		}
	}
	return n
}
