package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/route"
)

// listens is a server at a random address that counts the connections on which it receives data.
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

// logIn sends the first line of a client of a plain-text protocol, and returns the answer.
func logIn(c net.Conn) (string, error) {
	if _, err := io.WriteString(c, "AUTH s3cret\n"); err != nil {
		return "", err
	}
	return proxytest.FirstLine(c)
}

// TestAttackDeadServerIsReplacedByThatOfAnotherName: two names share a dead address, and one of them also resolves to
// another tenant's server. A connection to the dead address may be for either name, so its data must not go to that server.
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
						t.Errorf("the other tenant's server answered %q", got)
					}
				})
			}
			all.Wait()
			if n := reached.Load(); n != 0 {
				t.Errorf("the password was sent to the other tenant's server %d times", n)
			}
		})
	}
}

// TestAddressOfAllNamesIsTaken: another address is tried if all names that the connection may be for share it.
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

// lookups counts the DNS lookups.
type lookups struct {
	route.Resolver
	n atomic.Int32
}

func (l *lookups) Lookup(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	l.n.Add(1)
	return l.Resolver.Lookup(ctx, b, n)
}

// TestAttackDeadAddressAsksForADeniedName: a connection allowed by address causes no lookup of a name that the policy has
// come to deny.
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
		t.Errorf("it reached %q", got)
	}
	r.WantReason(name.ReasonUnreachable)
	if n := counted.n.Load(); n != 0 {
		t.Errorf("DNS was asked for the name %d times", n)
	}
}

// TestAttackDeadAddressIsReplacedByAName: a client that uses CONNECT with an address is not connected to another address of
// a name.
func TestAttackDeadAddressIsReplacedByAName(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.AllowAll)
	theirs, reached := listens(t, r)
	dead := netip.AddrPortFrom(netip.MustParseAddr("127.255.255.254"), theirs.Port())
	r.Names.Grant("theirs.example", dead.Addr(), theirs.Addr())
	r.Names.Set("theirs.example", dead.Addr(), theirs.Addr())
	c, _ := connect(r, r.Explicit(), dead.String(), "")
	if got, err := logIn(c); err == nil || reached.Load() != 0 {
		t.Errorf("the other tenant's server answered %q", got)
	}
}

// attempts returns the number of unanswered connection attempts of this machine to addresses.
func attempts(t *testing.T, to []netip.Addr, port uint16) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	remotes := map[string]bool{}
	for _, addr := range to {
		a := addr.As4()
		remotes[fmt.Sprintf("%02X%02X%02X%02X:%04X", a[3], a[2], a[1], a[0], port)] = true
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 3 && remotes[f[2]] && f[3] == "02" {
			n++
		}
	}
	return n
}

// TestAttackNameOfManyDeadAddresses: a name under the box's control, with many addresses that never answer, does not
// multiply its connections.
func TestAttackNameOfManyDeadAddresses(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.AllowAll, func(c *proxy.Config) { c.MaxExtraAttempts = 16 })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := proxytest.PortOf(t, ln)
	t.Cleanup(func() { ln.Close() })
	var dead []netip.Addr
	for range 12 {
		dead = append(dead, silentAt(t, port))
	}
	r.Names.Grant("many.example", dead...)
	r.Names.Set("many.example", dead...)
	at := r.Listen(netip.AddrPortFrom(dead[0], port))
	const conns = 20
	var all []net.Conn
	for range conns {
		c := proxytest.DialTo(t, at)
		_, _ = io.WriteString(c, "AUTH s3cret\n")
		all = append(all, c)
	}
	extra := func() proxy.Use { return r.Proxy.Uses()["extra_attempts"] }
	proxytest.Await(t, "attempts beside others", func() bool { return extra().Taken >= 4 })
	var counts []int
	for end := time.Now().Add(time.Second); time.Now().Before(end) || len(counts) < 10; time.Sleep(10 * time.Millisecond) {
		counts = append(counts, attempts(t, dead, port))
		if n := extra().Taken; n > 4 {
			t.Errorf("%d extra attempts", n)
			break
		}
	}
	// Entries that appear or disappear while the table is read are counted twice, on a busy machine sometimes all of them.
	// Without a limit there are four for each connection.
	slices.Sort(counts)
	if usual := counts[len(counts)/2]; usual == 0 || usual > 2*conns || extra().Most != 16 {
		t.Errorf("%d connections made %d attempts at the same time; %+v", conns, usual, extra())
	}
	for _, c := range all {
		c.Close()
	}
	r.Proxy.CloseAll()
	proxytest.Await(t, "the end of the attempts", func() bool { return extra().Taken == 0 && attempts(t, dead, port) == 0 })
}

// TestRoomForExtraAttempts: a box that has used up the extra attempts still gets from a dead address to the next one.
func TestRoomForExtraAttempts(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.AllowAll, func(c *proxy.Config) { c.MaxExtraAttempts = 4 })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	port := proxytest.PortOf(t, ln)
	first, second := silentAt(t, port), silentAt(t, port)
	r.Names.Grant("dead.example", first, second)
	r.Names.Set("dead.example", first, second)
	at := r.Listen(netip.AddrPortFrom(first, port))
	for range 5 {
		_, _ = io.WriteString(proxytest.DialTo(t, at), "AUTH s3cret\n")
	}
	proxytest.Await(t, "an attempt beside another", func() bool { return r.Proxy.Uses()["extra_attempts"].Taken == 1 })

	// A refused attempt needs no extra one: the next is made after it.
	live, _ := listens(t, r)
	refused := netip.AddrPortFrom(netip.MustParseAddr("127.255.255.254"), live.Port())
	r.Names.Grant("live.example", refused.Addr(), live.Addr())
	r.Names.Set("live.example", refused.Addr(), live.Addr())
	at = r.Listen(refused)
	proxytest.Await(t, "an answer", func() bool {
		_, err := logIn(proxytest.DialTo(t, at))
		return err == nil
	})
}

// TestSearchEndsWithTheAttempt: after the address that the box chose has accepted, no other address is tried.
func TestSearchEndsWithTheAttempt(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.AllowAll, func(c *proxy.Config) { c.DialTimeout = 10 * time.Minute })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	port := proxytest.PortOf(t, ln)
	slow, fd := silent(t, port)
	dead := silentAt(t, port)
	r.Names.Grant("slow.example", slow, dead)
	r.Names.Set("slow.example", slow, dead)
	c := r.Dial(netip.AddrPortFrom(slow, port))
	_, _ = io.WriteString(c, "AUTH s3cret\n")
	extra := func() int { return r.Proxy.Uses()["extra_attempts"].Taken }
	proxytest.Await(t, "an attempt beside the first", func() bool { return extra() == 1 })
	for range 2 { // the filler of the backlog, and the connection
		accepted, _, err := unix.Accept(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(accepted)
		_, _ = unix.Write(accepted, []byte("OK\n"))
	}
	if line, err := proxytest.FirstLine(c); err != nil || line != "OK" {
		t.Fatalf("%q, %v", line, err)
	}
	proxytest.Await(t, "the end of the other attempt", func() bool { return extra() == 0 })
	if n := len(r.Live.Of("box1")); n != 1 {
		t.Errorf("%d connections are open", n)
	}
}
