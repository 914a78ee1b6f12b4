package proxy

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"

	"boxgate/policy"
)

func TestConnectionsOfAllBoxesAreLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *Config) { c.MaxAllConns = 8 })
	echo := r.server(7005, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	second := r.second()
	addr := r.listen(echo)
	for range 6 {
		c := dialTo(t, addr)
		_, _ = io.WriteString(c, "x\n")
		if got, err := firstLine(c); err != nil || got != "x" {
			t.Fatalf("within the limit: %q, %v", got, err)
		}
	}
	closedOnArrival(t, addr)
	if e := r.wantReason(policy.ReasonLimit); e.Box != "box1" {
		t.Errorf("%+v", e)
	}
	c := second(addr)
	_, _ = io.WriteString(c, "y\n")
	if got, err := firstLine(c); err != nil || got != "y" {
		t.Errorf("the other box: %q, %v", got, err)
	}
}

// An idle tunnel holds two sockets and nothing else, and so does one whose reader is slow once the box's pipes are used up.
func TestTunnelsHoldAPipeOnlyForBytesOnTheirWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *Config) { c.MaxPipes = 8 })
	echo := r.server(7006, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	flood := r.server(7007, func(c net.Conn) { // sends without end
		defer c.Close()
		b := make([]byte, 1<<20)
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	lent := r.p.core.Tunnels.Pipes
	second := r.second()
	addr := r.listen(echo)
	talk := func(c net.Conn) {
		t.Helper()
		_, _ = io.WriteString(c, "x\n")
		if got, err := firstLine(c); err != nil || got != "x" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	var idle []net.Conn
	for range 20 {
		c := dialTo(t, addr)
		talk(c)
		idle = append(idle, c)
	}
	await(t, "the end of what is under way", func() bool { return lent() == 0 })
	floods := r.listen(flood)
	for range 10 { // of which nothing is read
		_, _ = io.WriteString(dialTo(t, floods), "x\n")
	}
	await(t, "pipes that are stuck", func() bool { return lent() == 2 })
	for _, c := range idle { // they copy, all the box's pipes being used
		talk(c)
	}
	talk(second(addr))
	if n := lent(); n > 3 {
		t.Errorf("%d pipes are lent", n)
	}
}

func TestBulkGoesThroughUnchangedWithoutPipes(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	r.p.core.Tunnels.Close()
	c := r.dial(r.server(7008, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	}))
	sent := make([]byte, 3<<20+17)
	_, _ = rand.Read(sent)
	sent[0] = 0 // or they might begin like TLS
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	})
	got := closedWithout(t, c)
	both.Wait()
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back of %d", len(got), len(sent))
	}
}
