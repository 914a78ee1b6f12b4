package proxy

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
)

func TestHalfCloseIsPassedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	server := r.server(7001, func(c net.Conn) { // answers when it has heard all
		defer c.Close()
		all, _ := io.ReadAll(c)
		_, _ = c.Write(bytes.ToUpper(all))
	})
	c := r.dial(server)
	_, _ = io.WriteString(c, "all of it")
	_ = c.CloseWrite()
	if got := closedWithout(t, c); string(got) != "ALL OF IT" {
		t.Errorf("%q", got)
	}
	if e := r.wantReason(policy.ReasonAllowAll); e.BytesIn != 9 || e.BytesOut != 9 || e.Error != "" {
		t.Errorf("%+v", e)
	}
}

func TestResetIsHandedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	c := r.dial(r.server(7002, func(c net.Conn) {
		_, _ = firstLine(c)
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
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	c := r.dial(r.server(7003, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	}))
	sent := make([]byte, 3*(1<<20)+17)
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
	if e := r.wantReason(policy.ReasonAllowAll); e.BytesIn != int64(len(sent)) || e.BytesOut != int64(len(sent)) {
		t.Errorf("%+v", e)
	}
}

func TestIdleTunnelIsClosedAndABusyOneIsNot(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *Config) { c.IdleTimeout = 3 * time.Second })
	echo := r.server(7004, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	idle, busy := r.dial(echo), r.dial(echo)
	_, _ = io.WriteString(idle, "x\n")
	_, _ = firstLine(idle)
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
		if got, err := firstLine(busy); err != nil || got != "y" {
			t.Fatalf("the busy tunnel: %q, %v", got, err)
		}
	}
	r.want("idle timeout", func(e audit.Event) bool { return e.Error == "idle timeout" })
}
