package proxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/peek"
	"boxgate/proxy/peek/peektest"
	"boxgate/proxy/proxytest"
)

func TestSNIOfAllowedNameAtAttackersAddressReachesTheOwner(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	owner, attacker := r.TLSServer("good.example"), r.Trap(443)
	r.Names.Set("good.example", owner.Addr())
	got, err := r.Hello(r.Dial(attacker), "good.example")
	if err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestHostOfAllowedNameAtAttackersAddressReachesTheOwner(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	owner := r.Server(80, func(c net.Conn) {
		defer c.Close()
		_, _ = proxytest.FirstLine(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nowner\n")
	})
	r.Names.Set("good.example", owner.Addr())
	c := r.Dial(r.Trap(80))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
	answer, _ := io.ReadAll(c)
	if !bytes.HasSuffix(answer, []byte("\r\n\r\nowner\n")) {
		t.Fatalf("%q", answer)
	}
}

// oneByte sends every byte in a separate segment.
type oneByte struct{ *net.TCPConn }

func (c oneByte) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := c.TCPConn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

func TestClientHelloInOneByteSegmentsIsSpliced(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	if got, err := r.Hello(oneByte{r.Dial(owner)}, "good.example"); err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestClientHelloBeyond16KiBIsSpliced(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	c := tls.Client(r.Dial(owner), &tls.Config{
		ServerName: "good.example", RootCAs: r.Upstream.Pool(), NextProtos: peektest.LongProtocols(30000),
	})
	if got, err := proxytest.FirstLine(c); err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestDeniedNameGetsAnAlertBeforeAnyCertificate(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	_, err := r.Hello(r.Dial(r.Trap(443)), "bad.example")
	if !proxytest.AccessDeniedAlert(err) {
		t.Fatalf("%v", err)
	}
	e := r.WantReason(name.ReasonNotAllowed)
	if e.Name != "bad.example" || e.Verdict != policy.Deny || e.Action != audit.ActionRefuse || e.Stage != policy.StageConn || e.Box != "box1" || e.Port != 443 {
		t.Errorf("%+v", e)
	}
}

func TestSinkIsRefusedByNameAndServesOnceAllowed(t *testing.T) {
	sink := netip.MustParseAddr("127.0.0.99")
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.Sink = []netip.Addr{sink} })
	owner := r.TLSServer("bad.example")
	r.Names.Set("bad.example", owner.Addr())
	at := netip.AddrPortFrom(sink, 443)
	if _, err := r.Hello(r.Dial(at), "bad.example"); err == nil {
		t.Fatal("a denied name was served")
	}
	if e := r.WantReason(name.ReasonNotAllowed); e.Name != "bad.example" || e.Addr.IsValid() {
		t.Errorf("%+v", e)
	}
	r.Policy(policy.Spec{Mode: policy.ModeAllowAll}, nil)
	if got, err := r.Hello(r.Dial(at), "bad.example"); err != nil || got != "hello from bad.example" {
		t.Fatalf("after the policy was opened: %q, %v", got, err)
	}
}

// closedWithout waits for the end of c and returns the data read until then.
func closedWithout(t *testing.T, c net.Conn) []byte {
	t.Helper()
	b, err := io.ReadAll(c)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatal("the connection was left open")
	}
	return b
}

// closedOnArrival dials addr, where every connection is reset immediately. It returns false if the reset came before the
// dial returned.
func closedOnArrival(t *testing.T, addr string) bool {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if got := closedWithout(t, c); len(got) > 0 {
		t.Errorf("%q came before the end", got)
	}
	return true
}

func TestFirstByteAndThenSilenceIsClosedAtTheDeadline(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.PeekTimeout = 50 * time.Millisecond })
	trap := r.Trap(443)
	for _, sent := range []string{"", "\x16", "\x16\x03\x01\x02\x00\x01"} {
		c := r.Dial(trap)
		_, _ = io.WriteString(c, sent)
		if got := closedWithout(t, c); len(got) > 0 {
			t.Errorf("after %q came %q", sent, got)
		}
	}
	r.WantReason(name.ReasonPeekTimeout)
}

func TestEndlessRequestLineIsClosedAtTheCap(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	c := r.Dial(r.Trap(443))
	go io.WriteString(c, "GET /"+strings.Repeat("a", 2*peek.Cap))
	closedWithout(t, c)
	r.WantReason(name.ReasonPeekSize)
}

func TestWhatIsNeitherTLSNorHTTPOn443And80IsRefused(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example", "*.example.com"))
	for _, port := range []uint16{443, 80} {
		trap := r.Trap(port)
		r.Names.Grant("good.example", trap.Addr()) // a grant does not suffice here: a name could have come
		for _, sent := range []string{"SSH-2.0-x\r\n", "EHLO x\r\n", "\x80\x2e\x01\x00\x02", "\x00\x01\x02\x03"} {
			c := r.Dial(trap)
			_, _ = io.WriteString(c, sent)
			if got := closedWithout(t, c); len(got) > 0 {
				t.Errorf("after %q came %q", sent, got)
			}
		}
	}
	r.WantReason(name.ReasonNoName)
}

func TestNoSNIAndAddressSNIAndOldTLSAreRefused(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	trap := r.Trap(443)
	r.Names.Set("good.example", trap.Addr())
	for what, cfg := range map[string]*tls.Config{
		"no SNI":  {InsecureSkipVerify: true},
		"TLS 1.1": {ServerName: "good.example", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	} {
		err := tls.Client(r.Dial(trap), cfg).Handshake()
		if !proxytest.AccessDeniedAlert(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.WantReason(name.ReasonNoName)
	r.WantReason(name.ReasonProtocol)
}

func TestAnAddressRuleAllowsWhatNamesNothing(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	echo := r.Server(443, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	r.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{echo.Addr().String() + "/32"}}, nil)
	c := r.Dial(echo)
	_, _ = io.WriteString(c, "SSH-2.0-x\r\n")
	_ = c.CloseWrite()
	if got := closedWithout(t, c); string(got) != "SSH-2.0-x\r\n" {
		t.Errorf("%q", got)
	}
	e := r.WantReason(name.ReasonAllowedCIDR)
	if e.Action != audit.ActionSplice || e.BytesIn != 11 || e.BytesOut != 11 || e.Verdict != policy.Allow {
		t.Errorf("%+v", e)
	}
}

func TestWhereTheServerSpeaksFirstTheGrantDecides(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("git.example"))
	greet := func(c net.Conn) {
		_, _ = io.WriteString(c, "SSH-2.0-server\n")
		c.Close()
	}
	for _, port := range []uint16{22, 7000} { // a well-known port of such a protocol, and one on which the client just stays silent
		server := r.Server(port, greet)
		r.Names.Grant("git.example", server.Addr())
		c := r.Dial(server)
		if got, err := proxytest.FirstLine(c); err != nil || got != "SSH-2.0-server" {
			t.Errorf("port %d: %q, %v", port, got, err)
		}
		c.Close()
		if e := r.Want("splice", func(e audit.Event) bool { return e.Port == port }); e.Name != "git.example" || e.Action != audit.ActionSplice {
			t.Errorf("%+v", e)
		}
		closedOnArrival(t, r.Listen(r.Trap(port))) // no grant
	}
	r.WantReason(name.ReasonNotAllowed)
}

func TestSilenceIsNoWayRoundInterception(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("api.example"), func(c *proxy.Config) { c.PeekTimeout = time.Second })
	trap := r.Trap(8443)
	r.Names.Grant("api.example", trap.Addr())
	r.Policy(proxytest.Allow("api.example"), map[string]map[string]string{"api.example:8443": {"Authorization": "x"}})
	closedWithout(t, r.Dial(trap))
	r.WantReason(name.ReasonPeekTimeout)
	c := r.Dial(trap)
	_, _ = io.WriteString(c, "\x00raw bytes")
	closedWithout(t, c)
	r.WantReason(name.ReasonProtocol)
}

func TestOwnAddressesAndTheListenerAreRefused(t *testing.T) {
	own := netip.MustParseAddr("127.0.0.77")
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.Own = []netip.Addr{own} })
	closedOnArrival(t, r.Listen(netip.AddrPortFrom(own, 443)))
	if e := r.WantReason(name.ReasonHostPort); e.Addr != own {
		t.Errorf("%+v", e)
	}
	r.With(func(c *proxy.Config) { c.OriginalDst = nil }) // a box that dials the listener itself
	addr := r.Listen(netip.AddrPort{})
	closedOnArrival(t, addr)
	r.Want("listener", func(e audit.Event) bool {
		return e.Reason == name.ReasonHostPort && netip.AddrPortFrom(e.Addr, e.Port).String() == addr
	})
	r.Names.Set("good.example", own)
	c, err := r.Core.Origins.Dial(t.Context(), r.Box, r.Target("good.example"))
	var denied *policy.DeniedError
	if c != nil || !errors.As(err, &denied) || denied.Decision.Reason != name.ReasonHostPort {
		t.Errorf("a name of the gateway: %v", err)
	}
}

func TestUnknownBoxIsClosed(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	addr := r.Listen(r.Trap(443))
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	if c, err := d.Dial("tcp", addr); err == nil { // the reset may come that early
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		closedWithout(t, c)
	}
	if e := r.WantReason(name.ReasonUnknownBox); e.Verdict != policy.Deny || e.Box != "" {
		t.Errorf("%+v", e)
	}
}

func TestConnectionLimitCountsFromAcceptAndPerBox(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.MaxConns = 3 })
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	other := &policy.Box{ID: "box2", V4: netip.MustParseAddr("127.0.0.3")}
	other.Policy.Store(r.Box.Policy.Load())
	r.Boxes.Add(other)
	addr := r.Listen(owner)
	var silent []net.Conn
	for range 3 {
		silent = append(silent, proxytest.DialTo(t, addr)) // sends nothing
	}
	proxytest.Await(t, "the three connections", func() bool { return len(r.Live.Of("box1")) == 3 })
	closedOnArrival(t, addr)
	if e := r.WantReason(name.ReasonLimit); e.Box != "box1" {
		t.Errorf("%+v", e)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: other.V4.AsSlice()}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := r.Hello(c, "good.example"); err != nil || got != "hello from good.example" {
		t.Errorf("the other box: %q, %v", got, err)
	}
	silent[0].Close()
	r.Want("end of a silent connection", func(e audit.Event) bool { return e.Reason == name.ReasonNoName })
	proxytest.Await(t, "the end of its connection", func() bool { return len(r.Live.Of("box1")) < 3 })
	if got, err := r.Hello(proxytest.DialTo(t, addr), "good.example"); err != nil || got != "hello from good.example" {
		t.Errorf("after one was closed: %q, %v", got, err)
	}
}

func TestPanicKillsOneConnection(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("api.example", "good.example"), func(c *proxy.Config) { c.Leaves = panicking{} })
	r.Policy(proxytest.Allow("api.example", "good.example"), map[string]map[string]string{"api.example": {"Authorization": "x"}})
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	other := tls.Client(r.Dial(owner), &tls.Config{ServerName: "good.example", RootCAs: r.Upstream.Pool()})
	if _, err := proxytest.FirstLine(other); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Hello(r.Dial(owner), "api.example"); err == nil {
		t.Error("a connection that panicked was served")
	}
	if e := r.WantReason(name.ReasonInternal); e.Verdict != policy.Deny || strings.Contains(e.Error, "secret") {
		t.Errorf("%+v", e)
	}
	_, _ = io.WriteString(other, "still here\n")
	if got, err := proxytest.FirstLine(other); err != nil || got != "still here" {
		t.Errorf("the other connection: %q, %v", got, err)
	}
}

type panicking struct{}

func (panicking) LeafFor(context.Context, *tls.ClientHelloInfo, policy.BoxID, name.Name) (*tls.Certificate, error) {
	panic("secret")
}

func TestDenyPageAnswersOverTLS(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.DenyPage = true })
	c := tls.Client(r.Dial(r.Trap(443)), &tls.Config{ServerName: "bad.example.com", RootCAs: r.BoxCA.Pool(), NextProtos: []string{"h2", "http/1.1"}})
	if _, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: bad.example.com\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 403 ")) || !bytes.Contains(answer, []byte(`"reason":"not_allowed"`)) {
		t.Errorf("%q, %v", answer, err)
	}
	if e := r.WantReason(name.ReasonNotAllowed); e.Status != 403 || e.Action != audit.ActionRefuse || e.Verdict != policy.Deny {
		t.Errorf("%+v", e)
	}
}
