package proxy_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

func TestHalfCloseIsPassedOn(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	server := r.Server(7001, func(c net.Conn) { // answers after it has received everything
		defer c.Close()
		all, _ := io.ReadAll(c)
		_, _ = c.Write(bytes.ToUpper(all))
	})
	c := r.Dial(server)
	_, _ = io.WriteString(c, "all of it")
	_ = c.CloseWrite()
	if got := closedWithout(t, c); string(got) != "ALL OF IT" {
		t.Errorf("%q", got)
	}
	if e := r.WantReason(name.ReasonAllowAll); e.BytesIn != 9 || e.BytesOut != 9 || e.Error != "" {
		t.Errorf("%+v", e)
	}
}

func TestResetIsHandedOn(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	c := r.Dial(r.Server(7002, func(c net.Conn) {
		_, _ = proxytest.FirstLine(c)
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}))
	_, _ = io.WriteString(c, "x\n")
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the upstream reset, the client saw %v", err)
	}
}

func TestBulkGoesThroughUnchangedBothWays(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	c := r.Dial(r.Server(7003, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	}))
	sent := make([]byte, 3*(1<<20)+17)
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
	ended := func(e audit.Event) bool { return e.Reason == name.ReasonAllowAll && e.Phase != audit.PhaseOpen } // there may be one of phase open as well, on a slow machine
	if e := r.Want("the end of the connection", ended); e.BytesIn != int64(len(sent)) || e.BytesOut != int64(len(sent)) {
		t.Errorf("%+v", e)
	}
}

func TestIdleTunnelIsClosedAndABusyOneIsNot(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.IdleTimeout = 3 * time.Second })
	echo := r.Server(7004, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	idle, busy := r.Dial(echo), r.Dial(echo)
	_, _ = io.WriteString(idle, "x\n")
	_, _ = proxytest.FirstLine(idle)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	closed := make(chan struct{})
	go func() {
		closedWithout(t, idle)
		close(closed)
	}()
	for open := true; open; {
		select {
		case <-closed:
			open = false
		case <-tick.C:
		}
		_, _ = io.WriteString(busy, "y\n")
		if got, err := proxytest.FirstLine(busy); err != nil || got != "y" {
			t.Fatalf("the busy tunnel: %q, %v", got, err)
		}
	}
	r.Want("idle timeout", func(e audit.Event) bool { return e.Error == "idle timeout" })
}
