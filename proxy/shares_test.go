package proxy_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

func TestConnectionsOfAllBoxesAreLimited(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.MaxAllConns = 8 })
	echo := r.Server(7005, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	second := second(r)
	addr := r.Listen(echo)
	for range 6 {
		c := proxytest.DialTo(t, addr)
		_, _ = io.WriteString(c, "x\n")
		if got, err := proxytest.FirstLine(c); err != nil || got != "x" {
			t.Fatalf("within the limit: %q, %v", got, err)
		}
	}
	closedOnArrival(t, addr)
	if e := r.WantReason(name.ReasonLimit); e.Box != "box1" {
		t.Errorf("%+v", e)
	}
	c := second(addr)
	_, _ = io.WriteString(c, "y\n")
	if got, err := proxytest.FirstLine(c); err != nil || got != "y" {
		t.Errorf("the other box: %q, %v", got, err)
	}
}

// An idle tunnel uses two sockets only, and so does one with a slow reader after the box's pipes are used up.
func TestTunnelsHoldAPipeOnlyForBytesOnTheirWay(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.MaxPipes = 8 })
	echo := r.Server(7006, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	flood := r.Server(7007, func(c net.Conn) { // sends without end
		defer c.Close()
		b := make([]byte, 1<<20)
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	lent := r.Core.Tunnels.Pipes
	second := second(r)
	addr := r.Listen(echo)
	talk := func(c net.Conn) {
		t.Helper()
		_, _ = io.WriteString(c, "x\n")
		if got, err := proxytest.FirstLine(c); err != nil || got != "x" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	var idle []net.Conn
	for range 20 {
		c := proxytest.DialTo(t, addr)
		talk(c)
		idle = append(idle, c)
	}
	proxytest.Await(t, "the end of what is under way", func() bool { return lent() == 0 })
	floods := r.Listen(flood)
	for range 10 { // never read
		_, _ = io.WriteString(proxytest.DialTo(t, floods), "x\n")
	}
	proxytest.Await(t, "pipes that are stuck", func() bool { return lent() == 2 })
	for _, c := range idle { // they copy, because all of the box's pipes are in use
		talk(c)
	}
	talk(second(addr))
	if n := lent(); n > 3 {
		t.Errorf("%d pipes are in use", n)
	}
}

func TestBulkGoesThroughUnchangedWithoutPipes(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	r.Core.Tunnels.Close()
	c := r.Dial(r.Server(7008, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	}))
	sent := make([]byte, 3<<20+17)
	_, _ = rand.Read(sent)
	sent[0] = 0 // so that the data does not look like TLS
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	})
	got := closedWithout(t, c)
	both.Wait()
	if !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came back", len(got), len(sent))
	}
}
