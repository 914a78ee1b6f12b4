package proxy_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// silentAt returns an address where SYNs to the port are not answered: that of a listener with a full backlog.
func silentAt(t *testing.T, port uint16) netip.Addr {
	t.Helper()
	addr, _ := silent(t, port)
	return addr
}

// silent is silentAt with the listener's descriptor. The listener answers again after its backlog was accepted.
func silent(t *testing.T, port uint16) (netip.Addr, int) {
	t.Helper()
	for last := byte(2); last < 255; last++ {
		addr := [4]byte{127, 9, byte(port), last}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: addr, Port: int(port)}); errors.Is(err, unix.EADDRINUSE) {
			continue
		} else if err = errors.Join(err, unix.Listen(fd, 0)); err != nil {
			t.Fatal(err)
		}
		proxytest.DialTo(t, netip.AddrPortFrom(netip.AddrFrom4(addr), port).String())
		return netip.AddrFrom4(addr), fd
	}
	t.Fatal("no address available")
	return netip.Addr{}, -1
}

// twoAddresses is a name with a dead address, which the box has chosen, and one of a server that sends a greeting and
// echoes.
type twoAddresses struct {
	*proxytest.Rig
	dead, alive netip.AddrPort
	secure      bool // the server speaks TLS, and the client speaks first
}

func newTwoAddresses(t *testing.T, v6, silent, secure bool) *twoAddresses {
	t.Helper()
	patience := func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond }
	if secure {
		patience = proxytest.Patient
	}
	n := &twoAddresses{Rig: proxytest.New(t, proxytest.Allow("two.example"), patience), secure: secure}
	at := "127.0.0.1:0"
	if v6 {
		at = "[::1]:0"
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	n.alive = netip.MustParseAddrPort(ln.Addr().String())
	cert := n.Rig.Upstream.Certificate(t, "two.example")
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if secure {
				c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
			}
			go func() {
				defer c.Close()
				if _, err := io.WriteString(c, "hello from two.example\n"); err == nil {
					_, _ = io.Copy(c, c)
				}
			}()
		}
	}()
	n.dead = netip.AddrPortFrom(netip.MustParseAddr("127.255.255.254"), n.alive.Port())
	if silent {
		n.dead = netip.AddrPortFrom(silentAt(t, n.alive.Port()), n.alive.Port())
	}
	n.Names.Grant("two.example", n.dead.Addr(), n.alive.Addr())
	n.Names.Set("two.example", n.dead.Addr(), n.alive.Addr())
	return n
}

// open connects to the address that the box has chosen, and reads the greeting.
func (n *twoAddresses) open() (net.Conn, error) {
	var c net.Conn = n.Dial(n.dead)
	if n.secure {
		c = tls.Client(c, &tls.Config{ServerName: "two.example", RootCAs: n.Rig.Upstream.Pool()})
	}
	line, err := proxytest.FirstLine(c)
	if err == nil && line != "hello from two.example" {
		err = errors.New(line)
	}
	return c, err
}

// eachTwoAddresses runs a test with each kind of dead address and of server.
func eachTwoAddresses(t *testing.T, test func(t *testing.T, n *twoAddresses)) {
	for i := range 8 {
		v6, silent, secure := i&1 != 0, i&2 != 0, i&4 != 0
		t.Run(fmt.Sprintf("v6 %v, silent %v, TLS %v", v6, silent, secure), func(t *testing.T) {
			t.Parallel()
			test(t, newTwoAddresses(t, v6, silent, secure))
		})
	}
}

// TestDeadAddressGivesWay: a name is reachable if one of its addresses is, whichever the box has chosen.
func TestDeadAddressGivesWay(t *testing.T) {
	t.Parallel()
	eachTwoAddresses(t, func(t *testing.T, n *twoAddresses) {
		c, err := n.open()
		if err != nil {
			t.Fatal(err)
		}
		if !echoes(n.Rig, c) {
			t.Error("it forwards no data")
		}
		c.Close()
		e := n.Want("the decision", func(e audit.Event) bool { return e.Verdict == policy.Allow && e.Phase != audit.PhaseOpen })
		if e.Addr != n.alive.Addr() || e.Claimed != n.dead.Addr() || e.Error != "" || e.BytesIn == 0 || e.BytesOut == 0 {
			t.Errorf("%+v", e)
		}
	})
}

// TestAttackAnotherAddressThatIsDenied: a dead address is replaced only by addresses that the policy allows.
func TestAttackAnotherAddressThatIsDenied(t *testing.T) {
	t.Parallel()
	eachTwoAddresses(t, func(t *testing.T, n *twoAddresses) {
		n.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"two.example"}, DeniedCIDRs: []string{n.alive.Addr().String()}}, nil)
		n.With(func(c *proxy.Config) { c.DialTimeout = 2 * time.Second })
		if c, err := n.open(); err == nil {
			t.Errorf("it reached %s", c.RemoteAddr())
		}
		n.WantReason(name.ReasonUnreachable)
	})
}

// TestAttackOtherAddressIsRevoked: a connection that was moved to another address is cut when that address is denied.
func TestAttackOtherAddressIsRevoked(t *testing.T) {
	t.Parallel()
	eachTwoAddresses(t, func(t *testing.T, n *twoAddresses) {
		c, err := n.open()
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		go func() { // a flood, in both directions
			defer close(over)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for b := make([]byte, 64<<10); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
		proxytest.Await(t, "the flood", func() bool { return n.Live.Of("box1")[0].In.Load() > 1<<20 })
		n.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"two.example"}, DeniedCIDRs: []string{n.alive.Addr().String()}}, nil)
		n.Proxy.Recheck("box1")
		if left := n.Live.Of("box1"); len(left) != 0 {
			t.Error("it is not cut")
			c.Close()
		}
		<-over
		if e := n.WantReason(name.ReasonPolicyChanged); e.Addr != n.alive.Addr() {
			t.Errorf("%+v", e)
		}
	})
}
