package proxy_test

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// second adds a second box to the rig and returns a function that connects as it.
func second(r *proxytest.Rig) (dial func(addr string) net.Conn) {
	r.T.Helper()
	other := r.NewBox("box2", "127.0.0.3")
	other.Policy.Store(r.Box.Policy.Load())
	return func(addr string) net.Conn {
		r.T.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: other.V4.AsSlice()}}
		c, err := d.Dial("tcp", addr)
		if err != nil {
			r.T.Fatal(err)
		}
		r.T.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
}

func TestNewConnectionsBeyondTheRateAreResetBeforeTheyAreRead(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.MaxNewConns = 1 }) // in bursts of two
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	second := second(r)
	addr := r.Listen(owner)
	for range 2 {
		if got, err := r.Hello(proxytest.DialTo(t, addr), "good.example"); err != nil || got != "hello from good.example" {
			t.Fatalf("within the limit: %q, %v", got, err)
		}
	}
	for range 10 { // the limiter regains one or two, at the speed of a slow machine
		c, err := net.Dial("tcp", addr)
		if err != nil {
			continue // reset before the dial returned
		}
		if _, err = r.Hello(c, "good.example"); proxytest.AccessDeniedAlert(err) {
			t.Fatal("a connection beyond the limit got an answer")
		}
		c.Close()
	}
	e := r.WantReason(name.ReasonLimit)
	if e.Box != "box1" || e.Verdict != policy.Deny || e.Action != audit.ActionRefuse || e.Name != "" || e.Port != 443 {
		t.Errorf("%+v", e)
	}
	if got, err := r.Hello(second(addr), "good.example"); err != nil || got != "hello from good.example" {
		t.Errorf("the other box: %q, %v", got, err)
	}
}

func TestOpenInterceptionsAreLimitedPerBox(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example", "spliced.example"), func(c *proxy.Config) { c.MaxInterceptions = 1 })
	r.Policy(proxytest.Allow("good.example", "spliced.example"), map[string]map[string]string{"good.example": {"X-Key": "k"}})
	owner, spliced := r.TLSServer("good.example"), r.TLSServer("spliced.example")
	r.Names.Set("good.example", owner.Addr())
	r.Names.Set("spliced.example", spliced.Addr())
	second := second(r)
	addr := r.Listen(owner)
	intercepted := func(c net.Conn) (*tls.Conn, error) {
		t := tls.Client(c, &tls.Config{ServerName: "good.example", RootCAs: r.BoxCA.Pool()})
		return t, t.Handshake()
	}
	held := proxytest.DialTo(t, addr)
	if _, err := intercepted(held); err != nil {
		t.Fatal(err)
	}
	if _, err := intercepted(proxytest.DialTo(t, addr)); err == nil || proxytest.AccessDeniedAlert(err) {
		t.Errorf("one too many ended with %v, want a reset", err)
	}
	if e := r.WantReason(name.ReasonLimit); e.Box != "box1" || e.Verdict != policy.Deny || e.Name != "good.example" {
		t.Errorf("%+v", e)
	}
	if got, err := r.Hello(r.Dial(spliced), "spliced.example"); err != nil || got != "hello from spliced.example" {
		t.Errorf("what is not intercepted: %q, %v", got, err)
	}
	if _, err := intercepted(second(addr)); err != nil {
		t.Errorf("the other box: %v", err)
	}
	held.Close()
	proxytest.Await(t, "the end of the first", func() bool { return r.Usages.Of(r.Box).Interceptions.Load() == 0 })
	if _, err := intercepted(proxytest.DialTo(t, addr)); err != nil {
		t.Errorf("after the first was closed: %v", err)
	}
}

func TestDenialPageCountsAsInterception(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.DenyPage, c.MaxInterceptions = true, 1 })
	addr := r.Listen(r.Trap(443))
	page := tls.Client(proxytest.DialTo(t, addr), &tls.Config{ServerName: "bad.example.com", RootCAs: r.BoxCA.Pool()})
	if err := page.Handshake(); err != nil { // without a request, so the page waits
		t.Fatal(err)
	}
	if _, err := r.Hello(proxytest.DialTo(t, addr), "bad.example.com"); !proxytest.AccessDeniedAlert(err) {
		t.Errorf("beyond the limit a denied name ended with %v, want the alert", err)
	}
	if e := r.WantReason(name.ReasonNotAllowed); e.Name != "bad.example.com" {
		t.Errorf("%+v", e)
	}
}

func TestFloodOfConnectionsIsCountedNotLoggedOneByOne(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.MaxConns, c.PeekTimeout = 1, time.Hour })
	addr := r.Listen(r.Trap(443))
	proxytest.DialTo(t, addr) // takes the only slot for the whole flood
	proxytest.Await(t, "the first connection", func() bool { return len(r.Live.Of("box1")) == 1 })
	const flood = 200
	arrived, begun := 0, time.Now()
	for range flood {
		if closedOnArrival(t, addr) {
			arrived++
		}
	}
	r.Proxy.CloseBox("box1") // records the pending refusals
	proxytest.Await(t, "the whole count", func() bool { told, _ := limited(r); return told >= arrived })
	most := 3 + int(time.Since(begun)/time.Second) // one a second, plus the burst and the flush
	if told, lines := limited(r); told > flood || lines > most {
		t.Errorf("%d refusals became %d in %d events", flood, told, lines)
	}
	if r.Usages.Has("box1") {
		t.Error("the closed box is still counted")
	}
}

// limited returns the number of recorded refusals for a limit, and the number of their events.
func limited(r *proxytest.Rig) (refusals, lines int) {
	for _, e := range r.Events.List() {
		if e.Reason == name.ReasonLimit {
			refusals += int(max(e.Count, 1))
			lines++
		}
	}
	return refusals, lines
}

func TestRemovedBoxLeavesNoCount(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	asked := 0
	r.With(func(c *proxy.Config) {
		known := c.Boxes
		c.Boxes = boxesFunc(func(a netip.Addr) *policy.Box {
			if asked++; asked > 1 {
				return nil // removed between the first and the second lookup
			}
			return known.BoxByAddr(a)
		})
	})
	if box, counts := r.Proxy.Find(r.Box.V4); box != nil || counts != r.Usages.Of(nil) {
		t.Errorf("a box that is gone was found: %+v", box)
	}
	if r.Usages.Has(r.Box.ID) {
		t.Error("the box that is gone is counted")
	}
}

// A box is removed after its connection was accepted, but before it is in the table. The connection is still refused, and
// no state remains for the box.
func TestBoxRemovedWhileAConnectionIsAdmitted(t *testing.T) {
	r := proxytest.New(t, proxytest.Allow("good.example"))
	var asked atomic.Int64
	r.With(func(c *proxy.Config) {
		known := c.Boxes
		c.DenyPage = true
		c.Boxes = boxesFunc(func(a netip.Addr) *policy.Box {
			if asked.Add(1) > 2 {
				return nil
			}
			if asked.Load() == 2 { // removed after the last lookup before the connection counts
				defer r.Proxy.CloseBox(r.Box.ID)
				defer r.Box.Policy.Store(nil)
			}
			return known.BoxByAddr(a)
		})
	})
	if c, err := net.Dial("tcp", r.Listen(netip.MustParseAddrPort("192.0.2.1:443"))); err == nil { // otherwise it is reset already
		defer c.Close()
		_ = tls.Client(c, &tls.Config{ServerName: "denied.example.com", InsecureSkipVerify: true}).Handshake()
	}
	r.WantReason(name.ReasonUnknownBox)
	if n := r.Proxy.TLSConfigs(); n > 0 || r.Usages.Has(r.Box.ID) {
		t.Errorf("kept for a box that is gone: %d TLS configurations", n)
	}
}

type boxesFunc func(netip.Addr) *policy.Box

func (f boxesFunc) BoxByAddr(a netip.Addr) *policy.Box { return f(a) }
