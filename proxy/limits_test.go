package proxy_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
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

// TestConnectionsOfOneBoxHaveItsOwnLimit: a box's own limit applies as soon as it is set, below or above the common one. A
// box over its limit gets no new connection until it is below, but keeps those it has. Other boxes have the common limit.
func TestConnectionsOfOneBoxHaveItsOwnLimit(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.MaxConns = 2 })
	second := second(r)
	addr := r.Listen(r.Trap(443))
	open := func() int { return len(r.Live.Of(r.Box.ID)) }
	dial := func(want int) []interface{ Close() error } {
		t.Helper()
		var held []interface{ Close() error }
		for n := open(); n < want; n = open() {
			held = append(held, proxytest.DialTo(t, addr))
			proxytest.Await(t, "one more connection", func() bool { return open() > n })
		}
		return held
	}
	full := func(limit int) {
		t.Helper()
		if closedOnArrival(t, addr); open() < limit { // or the reset came before the connection was made
			t.Errorf("with a limit of %d, %d connections are open", limit, open())
		}
	}
	r.Box.Limits.Store(policy.Limits{policy.LimitConnections: 4})
	held := dial(4)
	full(4)
	r.Box.Limits.Store(policy.Limits{policy.LimitConnections: 1})
	for i := len(held) - 1; i >= 0; i-- {
		full(1)
		if open() != i+1 {
			t.Fatalf("of %d connections %d are left", i+1, open())
		}
		held[i].Close()
		proxytest.Await(t, "one connection less", func() bool { return open() == i })
	}
	dial(1)
	full(1)
	r.Box.Limits.Store(policy.Limits{})
	dial(2)
	full(2)
	for range 2 {
		second(addr)
	}
	proxytest.Await(t, "the connections of the other box", func() bool { return len(r.Live.Of("box2")) == 2 })
}

func TestInterceptionsOfOneBoxHaveItsOwnLimit(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	r.Policy(proxytest.Allow("good.example"), map[string]map[string]string{"good.example": {"X-Key": "k"}})
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	addr := r.Listen(owner)
	intercepted := func() error {
		return tls.Client(proxytest.DialTo(t, addr), &tls.Config{ServerName: "good.example", RootCAs: r.BoxCA.Pool()}).Handshake()
	}
	if err := intercepted(); err != nil {
		t.Fatal(err)
	}
	r.Box.Limits.Store(policy.Limits{policy.LimitInterceptions: 1})
	if err := intercepted(); err == nil || proxytest.AccessDeniedAlert(err) {
		t.Errorf("one too many ended with %v, want a reset", err)
	}
	if used := r.Proxy.Filled(r.Box.ID)["interceptions"]; used != 1 {
		t.Errorf("%v of the limit is used, want all", used)
	}
	r.Box.Limits.Store(policy.Limits{policy.LimitInterceptions: 2})
	if err := intercepted(); err != nil {
		t.Error(err)
	}
}

func TestNewConnectionsOfOneBoxHaveTheirOwnRate(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.MaxNewConns = 1 })
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	addr := r.Listen(owner)
	r.Box.Limits.Store(policy.Limits{policy.LimitNewConnections: 1000})
	connects := func() bool {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return false // reset before the dial returned
		}
		defer c.Close()
		got, err := r.Hello(c, "good.example")
		return err == nil && got == "hello from good.example"
	}
	for range 20 {
		proxytest.Await(t, "a connection within the box's own rate", connects)
	}
	r.Box.Limits.Store(policy.Limits{policy.LimitNewConnections: 1})
	proxytest.Await(t, "a connection beyond it", func() bool { return !connects() })
	r.WantReason(name.ReasonLimit)
}

func TestRequestsOfOneBoxHaveTheirOwnRate(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(http.ResponseWriter, *http.Request) {})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	for _, h2 := range []bool{false, true} {
		client := l.HTTPClient(port, h2)
		get := func() int {
			res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil)
			return res.StatusCode
		}
		l.Box.Limits.Store(policy.Limits{})
		proxytest.Await(t, "a request within the limit of all", func() bool { return get() == http.StatusOK })
		l.Box.Limits.Store(policy.Limits{policy.LimitRequests: 1})
		proxytest.Await(t, "a request beyond the box's own limit", func() bool { return get() == http.StatusTooManyRequests })
	}
}

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
