package proxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// open makes a spliced TLS connection to name and checks that it works.
func open(r *proxytest.Rig, owner netip.AddrPort, name string) *tls.Conn {
	r.T.Helper()
	r.Names.Set(name, owner.Addr())
	c := tls.Client(r.Dial(owner), &tls.Config{ServerName: name, RootCAs: r.Upstream.Pool()})
	if got, err := proxytest.FirstLine(c); err != nil || got != "hello from "+name {
		r.T.Fatalf("%q, %v", got, err)
	}
	return c
}

func echoes(r *proxytest.Rig, c net.Conn) bool {
	if _, err := io.WriteString(c, "still here\n"); err != nil {
		return false
	}
	got, err := proxytest.FirstLine(c)
	return err == nil && got == "still here"
}

func TestRecheckCutsWhatIsDeniedAndNothingElse(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example", "b.example"))
	a, b := open(r, r.TLSServer("a.example"), "a.example"), open(r, r.TLSServer("b.example"), "b.example")
	r.Policy(proxytest.Allow("b.example"), nil)
	r.Proxy.Recheck("box1")
	// Recheck has returned, so the connection is closed on both sides and its handler is gone.
	if n := len(r.Live.Of("box1")); n != 1 {
		t.Errorf("%d connections are left", n)
	}
	if echoes(r, a) {
		t.Error("the denied connection still forwards data")
	}
	if !echoes(r, b) {
		t.Error("the allowed connection was disturbed")
	}
	if e := r.WantReason(name.ReasonPolicyChanged); e.Name != "a.example" || e.Verdict != policy.Deny || e.Version != 2 || e.BytesIn == 0 && e.BytesOut == 0 && e.Error == "" {
		t.Errorf("%+v", e)
	}
	if e := r.Want("the first decision", func(e audit.Event) bool { return e.Name == "a.example" && e.Verdict == policy.Allow }); e.Action != audit.ActionSplice || e.Version != 1 {
		t.Errorf("%+v", e)
	}
}

// TestRecheckCutsManyTunnels: of many spliced connections the denied ones are cut and recorded, all on return, and no other.
func TestRecheckCutsManyTunnels(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example", "b.example"))
	denied, allowed := r.TLSServer("a.example"), r.TLSServer("b.example")
	var cut, kept []net.Conn
	for range 20 {
		cut = append(cut, open(r, denied, "a.example"))
		kept = append(kept, open(r, allowed, "b.example"))
	}
	r.Policy(proxytest.Allow("b.example"), nil)
	r.Proxy.Recheck("box1")
	if n := len(r.Live.Of("box1")); n != len(kept) {
		t.Errorf("%d connections are left", n)
	}
	for i := range cut {
		if echoes(r, cut[i]) {
			t.Error("a denied connection still forwards data")
		}
		if !echoes(r, kept[i]) {
			t.Error("an allowed connection was disturbed")
		}
	}
	recorded := 0
	for _, e := range r.Events.List() {
		if e.Verdict == policy.Deny && e.Reason == name.ReasonPolicyChanged && e.Name == "a.example" {
			recorded++
		}
	}
	if recorded != len(cut) {
		t.Errorf("%d cuts are recorded", recorded)
	}
}

func TestRecheckCutsATunnelWhoseAddressIsDeniedNow(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example"))
	owner := r.TLSServer("a.example")
	c := open(r, owner, "a.example")
	r.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}, DeniedCIDRs: []string{owner.Addr().String()}}, nil)
	r.Proxy.Recheck("box1")
	if echoes(r, c) {
		t.Error("the tunnel to a denied address still forwards data")
	}
}

func TestRecheckCutsATunnelToAHostThatIsNowIntercepted(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	a, b := open(r, r.TLSServer("a.example"), "a.example"), open(r, r.TLSServer("b.example"), "b.example")
	r.Policy(policy.Spec{Mode: policy.ModeAllowAll}, map[string]map[string]string{"a.example": {"Authorization": "x"}})
	r.Proxy.Recheck("box1")
	if echoes(r, a) {
		t.Error("a tunnel bypasses the header rule")
	}
	if !echoes(r, b) {
		t.Error("the other connection was disturbed")
	}
}

func TestRecheckOfAnotherBoxDisturbsNothing(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example"))
	c := open(r, r.TLSServer("a.example"), "a.example")
	r.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	r.Proxy.Recheck("box2")
	if !echoes(r, c) {
		t.Error("the connection was cut by another box's policy")
	}
}

// TestAPolicySwappedWhileAConnectionIsDecidedIsSeen swaps the policy at the moment when a connection resolves its name,
// after its decision. The later one of recheck and handler must cut it.
func TestAPolicySwappedWhileAConnectionIsDecidedIsSeen(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example"))
	trap := r.Trap(443)
	r.Resolver.Set(swapping{r.Names, func() {
		r.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
		go r.Proxy.Recheck("box1")
	}})
	r.Names.Set("a.example", trap.Addr())
	if _, err := r.Hello(r.Dial(trap), "a.example"); err == nil {
		t.Error("served under a policy that is gone")
	}
}

type swapping struct {
	*proxytest.Names
	swap func()
}

func (s swapping) Lookup(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	s.swap()
	return s.Names.Lookup(ctx, b, n)
}

func TestCloseBoxClosesItsConnections(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example"))
	c := open(r, r.TLSServer("a.example"), "a.example")
	r.Proxy.CloseBox("box1")
	if n := len(r.Live.Of("box1")); n != 0 || echoes(r, c) {
		t.Errorf("%d connections are left", n)
	}
}

func TestShutdownDrainsThenCloses(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example"))
	owner := r.TLSServer("a.example")
	listener := r.Listen(owner)
	c := open(r, owner, "a.example")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Proxy.Shutdown(ctx) }()
	for { // until the listener is closed
		probe, err := net.Dial("tcp", listener)
		if err != nil {
			break
		}
		probe.Close()
	}
	if !echoes(r, c) {
		t.Error("an open tunnel was not drained")
	}
	select {
	case err := <-done:
		t.Fatalf("Shutdown returned with a tunnel open: %v", err)
	default:
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if echoes(r, c) {
		t.Error("a tunnel outlived the shutdown")
	}
}

func TestShutdownEndsWhenTheLastConnectionDoes(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example"))
	c := open(r, r.TLSServer("a.example"), "a.example")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Proxy.Shutdown(ctx) }()
	c.NetConn().Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A client that was silent at first continues under a policy by name only if its server is known to have spoken first.
func TestRecheckCutsWhatWasSilentOnceNamesDecide(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
	open := func(port uint16, greeting string) net.Conn {
		reached := make(chan struct{}, 1)
		c := r.Dial(r.Server(port, func(c net.Conn) {
			defer c.Close()
			reached <- struct{}{}
			_, _ = io.WriteString(c, greeting)
			_, _ = io.Copy(c, c)
		}))
		<-reached
		if greeting != "" {
			if _, err := proxytest.FirstLine(c); err != nil {
				t.Fatal(err)
			}
		}
		if !echoes(r, c) {
			t.Fatal("the connection does not forward data")
		}
		return c
	}
	quiet := open(7010, "")
	r.Policy(policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}}, nil)
	greeted, byPort := open(7011, "220 welcome\n"), open(2525, "220 welcome\n")
	r.Proxy.Recheck("box1")
	if echoes(r, quiet) {
		t.Error("unread late data of a client is forwarded")
	}
	if !echoes(r, greeted) || !echoes(r, byPort) {
		t.Error("a connection whose server speaks first was disturbed")
	}
}

// A request without a host is cut as soon as such a request could not begin any longer.
func TestRecheckCutsARequestWithoutANameOnceNamesDecide(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	slow := slowServer(r, 7012, nil)
	begin := func() io.Reader {
		c := r.Dial(slow)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+slow.String()+"\r\n\r\n")
		for line, err := proxytest.FirstLine(c); line != "begun"; line, err = proxytest.FirstLine(c) {
			if err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	c := begin()
	spec := cidr(slow.Addr())
	spec.DeniedDomains = []string{"bad.example"}
	r.Policy(spec, nil)
	r.Proxy.Recheck("box1")
	if n := len(r.Live.Of("box1")); n != 1 {
		t.Errorf("a request to an address that is listed was disturbed: %d connections", n)
	}
	r.Policy(policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}}, nil)
	r.Proxy.Recheck("box1")
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the response ended as if it were whole")
	}
	if n := len(r.Live.Of("box1")); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}
