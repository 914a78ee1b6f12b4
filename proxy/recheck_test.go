package proxy

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
)

// open makes a spliced TLS connection to name and proves that it works.
func (r *rig) open(owner netip.AddrPort, name string) *tls.Conn {
	r.t.Helper()
	r.names.set(name, owner.Addr())
	c := tls.Client(r.dial(owner), &tls.Config{ServerName: name, RootCAs: r.upstream.pool()})
	if got, err := firstLine(c); err != nil || got != "hello from "+name {
		r.t.Fatalf("%q, %v", got, err)
	}
	return c
}

func (r *rig) echoes(c net.Conn) bool {
	if _, err := io.WriteString(c, "still here\n"); err != nil {
		return false
	}
	got, err := firstLine(c)
	return err == nil && got == "still here"
}

func TestRecheckCutsWhatIsDeniedAndNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("a.example", "b.example"))
	a, b := r.open(r.tlsServer("a.example"), "a.example"), r.open(r.tlsServer("b.example"), "b.example")
	r.policy(allow("b.example"), nil)
	r.p.Recheck("box1")
	// Recheck has returned: the connection is closed on both sides already, and its handler is gone.
	if n := len(r.p.live.Of("box1")); n != 1 {
		t.Errorf("%d connections are left", n)
	}
	if r.echoes(a) {
		t.Error("the denied connection still carries bytes")
	}
	if !r.echoes(b) {
		t.Error("the allowed connection was disturbed")
	}
	if e := r.wantReason(policy.ReasonPolicyChanged); e.Name != "a.example" || e.Verdict != policy.Deny || e.Version != 2 || e.BytesIn == 0 && e.BytesOut == 0 && e.Error == "" {
		t.Errorf("%+v", e)
	}
	if e := r.want("the first decision", func(e audit.Event) bool { return e.Name == "a.example" && e.Verdict == policy.Allow }); e.Action != audit.ActionSplice || e.Version != 1 {
		t.Errorf("%+v", e)
	}
}

func TestRecheckCutsATunnelWhoseAddressIsDeniedNow(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("a.example"))
	owner := r.tlsServer("a.example")
	c := r.open(owner, "a.example")
	r.policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}, DeniedCIDRs: []string{owner.Addr().String()}}, nil)
	r.p.Recheck("box1")
	if r.echoes(c) {
		t.Error("the tunnel to a denied address still carries bytes")
	}
}

func TestRecheckCutsATunnelToAHostThatIsNowIntercepted(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	a, b := r.open(r.tlsServer("a.example"), "a.example"), r.open(r.tlsServer("b.example"), "b.example")
	r.policy(policy.Spec{Mode: policy.ModeAllowAll}, map[string]map[string]string{"a.example": {"Authorization": "x"}})
	r.p.Recheck("box1")
	if r.echoes(a) {
		t.Error("a tunnel goes round the header rule")
	}
	if !r.echoes(b) {
		t.Error("the other connection was disturbed")
	}
}

func TestRecheckOfAnotherBoxDisturbsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("a.example"))
	c := r.open(r.tlsServer("a.example"), "a.example")
	r.policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	r.p.Recheck("box2")
	if !r.echoes(c) {
		t.Error("the connection was cut by another box's policy")
	}
}

// TestAPolicySwappedWhileAConnectionIsDecidedIsSeen swaps the policy at the moment a connection resolves its name, that
// is after its decision: whichever of recheck and handler comes later must cut it.
func TestAPolicySwappedWhileAConnectionIsDecidedIsSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("a.example"))
	trap := r.trap(443)
	r.resolver.set(swapping{r.names, func() {
		r.policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
		go r.p.Recheck("box1")
	}})
	r.names.set("a.example", trap.Addr())
	if _, err := r.hello(r.dial(trap), "a.example"); err == nil {
		t.Error("served under a policy that is gone")
	}
}

type swapping struct {
	*names
	swap func()
}

func (s swapping) Lookup(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	s.swap()
	return s.names.Lookup(ctx, b, n)
}

func TestCloseBoxClosesItsConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("a.example"))
	c := r.open(r.tlsServer("a.example"), "a.example")
	r.p.CloseBox("box1")
	if n := len(r.p.live.Of("box1")); n != 0 || r.echoes(c) {
		t.Errorf("%d connections are left", n)
	}
}

func TestShutdownDrainsThenCloses(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("a.example"))
	owner := r.tlsServer("a.example")
	listener := r.listen(owner)
	c := r.open(owner, "a.example")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.p.Shutdown(ctx) }()
	for { // until the listener is gone
		probe, err := net.Dial("tcp", listener)
		if err != nil {
			break
		}
		probe.Close()
	}
	if !r.echoes(c) {
		t.Error("an open tunnel was not left to drain")
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
	if r.echoes(c) {
		t.Error("a tunnel outlived the shutdown")
	}
}

func TestShutdownEndsWhenTheLastConnectionDoes(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("a.example"))
	c := r.open(r.tlsServer("a.example"), "a.example")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.p.Shutdown(ctx) }()
	c.NetConn().Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A client that was silent at first, where names did not decide, goes on once they do only if its server is known to have
// spoken first.
func TestRecheckCutsWhatWasSilentOnceNamesDecide(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *Config) { c.SilenceTimeout = 10 * time.Millisecond })
	open := func(port uint16, greeting string) net.Conn {
		reached := make(chan struct{}, 1)
		c := r.dial(r.server(port, func(c net.Conn) {
			defer c.Close()
			reached <- struct{}{}
			_, _ = io.WriteString(c, greeting)
			_, _ = io.Copy(c, c)
		}))
		<-reached
		if greeting != "" {
			if _, err := firstLine(c); err != nil {
				t.Fatal(err)
			}
		}
		if !r.echoes(c) {
			t.Fatal("the connection does not carry bytes")
		}
		return c
	}
	quiet := open(7010, "")
	r.policy(policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}}, nil)
	greeted, byPort := open(7011, "220 welcome\n"), open(2525, "220 welcome\n")
	r.p.Recheck("box1")
	if r.echoes(quiet) {
		t.Error("what a client said late, and nobody read, goes on")
	}
	if !r.echoes(greeted) || !r.echoes(byPort) {
		t.Error("a connection whose server speaks first was disturbed")
	}
}

// A request that names no host goes on no longer than one may begin.
func TestRecheckCutsARequestWithoutANameOnceNamesDecide(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	slow := r.slowServer(7012, nil)
	begin := func() io.Reader {
		c := r.dial(slow)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+slow.String()+"\r\n\r\n")
		for line, err := firstLine(c); line != "begun"; line, err = firstLine(c) {
			if err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	c := begin()
	spec := cidr(slow.Addr())
	spec.DeniedDomains = []string{"bad.example"}
	r.policy(spec, nil)
	r.p.Recheck("box1")
	if n := len(r.p.live.Of("box1")); n != 1 {
		t.Errorf("a request to an address that is listed was disturbed: %d connections", n)
	}
	r.policy(policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}}, nil)
	r.p.Recheck("box1")
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the response ended as if it were whole")
	}
	if n := len(r.p.live.Of("box1")); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}
