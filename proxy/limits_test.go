package proxy

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

// second adds a second box to the rig and returns how it connects to addr.
func (r *rig) second() (dial func(addr string) net.Conn) {
	r.t.Helper()
	other := r.newBox("box2", "127.0.0.3")
	other.Policy.Store(r.box.Policy.Load())
	return func(addr string) net.Conn {
		r.t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: other.V4.AsSlice()}}
		c, err := d.Dial("tcp", addr)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
}

func TestNewConnectionsBeyondTheRateAreResetBeforeTheyAreRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"), func(c *Config) { c.MaxNewConns = 1 }) // and two at once
	owner := r.tlsServer("good.example")
	r.names.set("good.example", owner.Addr())
	second := r.second()
	addr := r.listen(owner)
	for range 2 {
		if got, err := r.hello(dialTo(t, addr), "good.example"); err != nil || got != "hello from good.example" {
			t.Fatalf("within the limit: %q, %v", got, err)
		}
	}
	for range 10 { // which gives back one or two, at the speed of a slow machine
		c, err := net.Dial("tcp", addr)
		if err != nil {
			continue // the reset came that early
		}
		if _, err = r.hello(c, "good.example"); accessDeniedAlert(err) {
			t.Fatal("a connection beyond the limit got an answer")
		}
		c.Close()
	}
	e := r.wantReason(policy.ReasonLimit)
	if e.Box != "box1" || e.Verdict != policy.Deny || e.Action != audit.ActionRefuse || e.Name != "" || e.Port != 443 {
		t.Errorf("%+v", e)
	}
	if got, err := r.hello(second(addr), "good.example"); err != nil || got != "hello from good.example" {
		t.Errorf("the other box: %q, %v", got, err)
	}
}

func TestOpenInterceptionsAreLimitedPerBox(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example", "spliced.example"), func(c *Config) { c.MaxInterceptions = 1 })
	r.policy(allow("good.example", "spliced.example"), map[string]map[string]string{"good.example": {"X-Key": "k"}})
	owner, spliced := r.tlsServer("good.example"), r.tlsServer("spliced.example")
	r.names.set("good.example", owner.Addr())
	r.names.set("spliced.example", spliced.Addr())
	second := r.second()
	addr := r.listen(owner)
	intercepted := func(c net.Conn) (*tls.Conn, error) {
		t := tls.Client(c, &tls.Config{ServerName: "good.example", RootCAs: r.boxCA.pool()})
		return t, t.Handshake()
	}
	held := dialTo(t, addr)
	if _, err := intercepted(held); err != nil {
		t.Fatal(err)
	}
	if _, err := intercepted(dialTo(t, addr)); err == nil || accessDeniedAlert(err) {
		t.Errorf("one too many ended with %v, want a reset", err)
	}
	if e := r.wantReason(policy.ReasonLimit); e.Box != "box1" || e.Verdict != policy.Deny || e.Name != "good.example" {
		t.Errorf("%+v", e)
	}
	if got, err := r.hello(r.dial(spliced), "spliced.example"); err != nil || got != "hello from spliced.example" {
		t.Errorf("what is not intercepted: %q, %v", got, err)
	}
	if _, err := intercepted(second(addr)); err != nil {
		t.Errorf("the other box: %v", err)
	}
	held.Close()
	await(t, "the end of the first", func() bool { return r.p.usages.Of(r.box).Interceptions.Load() == 0 })
	if _, err := intercepted(dialTo(t, addr)); err != nil {
		t.Errorf("after the first was closed: %v", err)
	}
}

func TestDenialPageCountsAsInterception(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"), func(c *Config) { c.DenyPage, c.MaxInterceptions = true, 1 })
	addr := r.listen(r.trap(443))
	page := tls.Client(dialTo(t, addr), &tls.Config{ServerName: "bad.example.com", RootCAs: r.boxCA.pool()})
	if err := page.Handshake(); err != nil { // and no request, so the page waits
		t.Fatal(err)
	}
	if _, err := r.hello(dialTo(t, addr), "bad.example.com"); !accessDeniedAlert(err) {
		t.Errorf("beyond the limit a denied name ended with %v, want the alert", err)
	}
	if e := r.wantReason(policy.ReasonNotAllowed); e.Name != "bad.example.com" {
		t.Errorf("%+v", e)
	}
}

func TestFloodOfConnectionsIsCountedNotLoggedOneByOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"), func(c *Config) { c.MaxConns = 1 })
	addr := r.listen(r.trap(443))
	dialTo(t, addr) // takes the only place
	await(t, "the first connection", func() bool { return len(r.p.live.Of("box1")) == 1 })
	const flood = 200
	arrived := 0
	for range flood {
		if closedOnArrival(t, addr) {
			arrived++
		}
	}
	r.p.CloseBox("box1") // which tells what is not told yet
	await(t, "the whole count", func() bool { told, _ := r.limited(); return told >= arrived })
	if told, lines := r.limited(); told > flood || lines > flood/4 {
		t.Errorf("%d refusals became %d in %d events", flood, told, lines)
	}
	if r.p.usages.Knows("box1") {
		t.Error("the closed box is still counted")
	}
}

// limited returns how many refusals for a limit were recorded, and in how many events.
func (r *rig) limited() (refusals, lines int) {
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	for _, e := range r.events.all {
		if e.Reason == policy.ReasonLimit {
			refusals += int(max(e.Count, 1))
			lines++
		}
	}
	return refusals, lines
}

func TestRemovedBoxLeavesNoCount(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	asked := 0
	r.with(func(c *Config) {
		known := c.Boxes
		c.Boxes = boxesFunc(func(a netip.Addr) *policy.Box {
			if asked++; asked > 1 {
				return nil // removed between the first look and the second
			}
			return known.BoxByAddr(a)
		})
	})
	c := &conn{p: r.p}
	if c.find(r.box.V4); c.box != nil || c.usage != r.p.usages.Of(nil) {
		t.Errorf("a box that is gone was found: %+v", c.box)
	}
	if r.p.usages.Knows(r.box.ID) {
		t.Error("the box that is gone is counted")
	}
}

// A box is removed after a connection of it was accepted, and before there is anything to close: the connection is refused
// all the same, and nothing is kept for the box.
func TestBoxRemovedWhileAConnectionIsAdmitted(t *testing.T) {
	r := newRig(t, allow("good.example"))
	var asked atomic.Int64
	r.with(func(c *Config) {
		known := c.Boxes
		c.DenyPage = true
		c.Boxes = boxesFunc(func(a netip.Addr) *policy.Box {
			if asked.Add(1) > 2 {
				return nil
			}
			if asked.Load() == 2 { // removed after the last look for it that counts it
				defer r.p.CloseBox(r.box.ID)
				defer r.box.Policy.Store(nil)
			}
			return known.BoxByAddr(a)
		})
	})
	if c, err := net.Dial("tcp", r.listen(netip.MustParseAddrPort("192.0.2.1:443"))); err == nil { // else it is reset already
		defer c.Close()
		_ = tls.Client(c, &tls.Config{ServerName: "denied.example.com", InsecureSkipVerify: true}).Handshake()
	}
	r.wantReason(policy.ReasonUnknownBox)
	r.p.tls.mu.Lock()
	defer r.p.tls.mu.Unlock()
	if len(r.p.tls.boxes) > 0 || r.p.usages.Knows(r.box.ID) {
		t.Errorf("kept for a box that is gone: %d TLS configurations", len(r.p.tls.boxes))
	}
}

type boxesFunc func(netip.Addr) *policy.Box

func (f boxesFunc) BoxByAddr(a netip.Addr) *policy.Box { return f(a) }
