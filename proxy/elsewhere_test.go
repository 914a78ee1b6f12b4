package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/route"
)

// listens is a server at an address of its own that counts who sends it something.
func listens(t *testing.T, r *proxytest.Rig) (at netip.AddrPort, reached *atomic.Int32) {
	t.Helper()
	reached = &atomic.Int32{}
	at = r.Server(0, func(c net.Conn) {
		defer c.Close()
		if line, err := proxytest.FirstLine(c); err == nil && line == "AUTH s3cret" {
			reached.Add(1)
			_, _ = io.WriteString(c, "OK\n")
		}
	})
	return at, reached
}

// logIn sends what a client of a plain protocol sends first, and returns the answer.
func logIn(c net.Conn) (string, error) {
	if _, err := io.WriteString(c, "AUTH s3cret\n"); err != nil {
		return "", err
	}
	return proxytest.FirstLine(c)
}

// TestAttackDeadServerIsReplacedByThatOfAnotherName: whose name leads to a server of somebody else as well is not sent what is for
// that server, when it is dead.
func TestAttackDeadServerIsReplacedByThatOfAnotherName(t *testing.T) {
	t.Parallel()
	for i, spec := range []policy.Spec{proxytest.AllowAll, proxytest.AllowAll, proxytest.Allow("mine.example", "theirs.example")} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			r := proxytest.New(t, spec, func(c *proxy.Config) { c.DialTimeout = 2 * time.Second })
			theirs, reached := listens(t, r)
			dead := netip.AddrPortFrom(netip.MustParseAddr("127.255.255.254"), theirs.Port())
			if i > 0 {
				dead = netip.AddrPortFrom(silentAt(t, theirs.Port()), theirs.Port())
			}
			r.Names.Grant("theirs.example", dead.Addr(), theirs.Addr())
			r.Names.Set("theirs.example", dead.Addr(), theirs.Addr())
			at := r.Listen(dead)
			proxytest.Await(t, "the answer while there is only one name", func() bool {
				_, err := logIn(proxytest.DialTo(t, at))
				return err == nil
			})
			reached.Store(0)
			r.Names.Grant("mine.example", dead.Addr())
			r.Names.Set("mine.example", dead.Addr())
			var all sync.WaitGroup
			for range 8 {
				c := proxytest.DialTo(t, at)
				all.Go(func() {
					if got, err := logIn(c); err == nil {
						t.Errorf("another's server answers %q", got)
					}
				})
			}
			all.Wait()
			if n := reached.Load(); n != 0 {
				t.Errorf("the password was sent to another's server %d times", n)
			}
		})
	}
}

// TestAddressOfAllNamesIsTaken: where all names that the connection may be for share the other address, that is tried.
func TestAddressOfAllNamesIsTaken(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.AllowAll)
	both, _ := listens(t, r)
	dead := netip.AddrPortFrom(netip.MustParseAddr("127.255.255.254"), both.Port())
	for _, name := range []string{"www.one.example", "one.example"} {
		r.Names.Grant(name, dead.Addr(), both.Addr())
		r.Names.Set(name, dead.Addr(), both.Addr())
	}
	at := r.Listen(dead)
	proxytest.Await(t, "the answer", func() bool {
		got, err := logIn(proxytest.DialTo(t, at))
		return err == nil && got == "OK"
	})
}

// lookups counts the names that are asked of DNS.
type lookups struct {
	route.Resolver
	n atomic.Int32
}

func (l *lookups) Lookup(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	l.n.Add(1)
	return l.Resolver.Lookup(ctx, b, n)
}

// TestAttackDeadAddressAsksForADeniedName: what an address allows has no name asked of DNS that the policy does not let be resolved any
// more.
func TestAttackDeadAddressAsksForADeniedName(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	counted := &lookups{Resolver: r.Names}
	r.Resolver.Set(counted)
	other := r.TLSServer("left.example")
	dead := netip.MustParseAddrPort("127.255.255.254:443")
	r.Names.Grant("left.example", dead.Addr(), other.Addr())
	r.Names.Set("left.example", dead.Addr(), other.Addr())
	if got, err := r.Hello(r.Dial(dead), "left.example"); err != nil || counted.n.Swap(0) == 0 {
		t.Fatalf("while it is allowed: %q, %v", got, err)
	}
	r.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"right.example"}, AllowedCIDRs: []string{"127.255.255.254"}}, nil)
	if got, err := r.Hello(r.Dial(dead), "left.example"); err == nil {
		t.Errorf("it got to %q", got)
	}
	r.WantReason(policy.ReasonUnreachable)
	if n := counted.n.Load(); n != 0 {
		t.Errorf("DNS was asked for the name %d times", n)
	}
}

// TestAttackDeadAddressIsReplacedByAName: a client that gives a proxy an address has asked for none of a name.
func TestAttackDeadAddressIsReplacedByAName(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.AllowAll)
	theirs, reached := listens(t, r)
	dead := netip.AddrPortFrom(netip.MustParseAddr("127.255.255.254"), theirs.Port())
	r.Names.Grant("theirs.example", dead.Addr(), theirs.Addr())
	r.Names.Set("theirs.example", dead.Addr(), theirs.Addr())
	c, _ := connect(r, r.Explicit(), dead.String(), "")
	if got, err := logIn(c); err == nil || reached.Load() != 0 {
		t.Errorf("another's server answers %q", got)
	}
}
