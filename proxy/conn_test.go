package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/proxy/origin"
	"boxgate/proxy/peek"
	"boxgate/proxy/peek/peektest"
)

func TestSNIOfAllowedNameAtAttackersAddressReachesTheOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	owner, attacker := r.tlsServer("good.example"), r.trap(443)
	r.names.set("good.example", owner.Addr())
	got, err := r.hello(r.dial(attacker), "good.example")
	if err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestHostOfAllowedNameAtAttackersAddressReachesTheOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	owner := r.server(80, func(c net.Conn) {
		defer c.Close()
		_, _ = firstLine(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nowner\n")
	})
	r.names.set("good.example", owner.Addr())
	c := r.dial(r.trap(80))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
	answer, _ := io.ReadAll(c)
	if !bytes.HasSuffix(answer, []byte("\r\n\r\nowner\n")) {
		t.Fatalf("%q", answer)
	}
}

func TestGrantedAddressIsDialledAsAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	asked := r.tlsServer("good.example")
	r.names.grant("good.example", asked.Addr())
	r.names.set("good.example", r.trap(443).Addr())
	if got, err := r.hello(r.dial(asked), "good.example"); err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
}

// oneByte sends every byte in a segment of its own.
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
	r := newRig(t, allow("good.example"))
	owner := r.tlsServer("good.example")
	r.names.set("good.example", owner.Addr())
	if got, err := r.hello(oneByte{r.dial(owner)}, "good.example"); err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestClientHelloBeyond16KiBIsSpliced(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	owner := r.tlsServer("good.example")
	r.names.set("good.example", owner.Addr())
	c := tls.Client(r.dial(owner), &tls.Config{
		ServerName: "good.example", RootCAs: r.upstream.pool(), NextProtos: peektest.LongProtocols(30000),
	})
	if got, err := firstLine(c); err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
}

// accessDeniedAlert reports whether err is the alert of that name, as crypto/tls tells of one that it received.
func accessDeniedAlert(err error) bool {
	return err != nil && err.Error() == "remote error: tls: access denied"
}

func TestDeniedNameGetsAnAlertBeforeAnyCertificate(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	_, err := r.hello(r.dial(r.trap(443)), "bad.example")
	if !accessDeniedAlert(err) {
		t.Fatalf("%v", err)
	}
	e := r.wantReason(policy.ReasonNotAllowed)
	if e.Name != "bad.example" || e.Verdict != policy.Deny || e.Action != audit.ActionRefuse || e.Stage != policy.StageConn || e.Box != "box1" || e.Port != 443 {
		t.Errorf("%+v", e)
	}
}

func TestSinkIsRefusedByNameAndServesOnceAllowed(t *testing.T) {
	sink := netip.MustParseAddr("127.0.0.99")
	t.Parallel()
	r := newRig(t, allow("good.example"), func(c *Config) { c.Sink = []netip.Addr{sink} })
	owner := r.tlsServer("bad.example")
	r.names.set("bad.example", owner.Addr())
	at := netip.AddrPortFrom(sink, 443)
	if _, err := r.hello(r.dial(at), "bad.example"); err == nil {
		t.Fatal("a denied name was served")
	}
	if e := r.wantReason(policy.ReasonNotAllowed); e.Name != "bad.example" || e.Addr.IsValid() {
		t.Errorf("%+v", e)
	}
	r.policy(policy.Spec{Mode: policy.ModeAllowAll}, nil)
	if got, err := r.hello(r.dial(at), "bad.example"); err != nil || got != "hello from bad.example" {
		t.Fatalf("after the policy was opened: %q, %v", got, err)
	}
}

// closedWithout waits for the end of c and reports what was read until then.
func closedWithout(t *testing.T, c net.Conn) []byte {
	t.Helper()
	b, err := io.ReadAll(c)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatal("the connection was left open")
	}
	return b
}

// closedOnArrival dials addr, where every connection is to be reset at once: at times before the dial has returned, and then
// the answer is false.
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
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *Config) { c.PeekTimeout = 50 * time.Millisecond })
	trap := r.trap(443)
	for _, sent := range []string{"", "\x16", "\x16\x03\x01\x02\x00\x01"} {
		c := r.dial(trap)
		_, _ = io.WriteString(c, sent)
		if got := closedWithout(t, c); len(got) > 0 {
			t.Errorf("after %q came %q", sent, got)
		}
	}
	r.wantReason(policy.ReasonPeekTimeout)
}

func TestEndlessRequestLineIsClosedAtTheCap(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	c := r.dial(r.trap(443))
	go io.WriteString(c, "GET /"+strings.Repeat("a", 2*peek.Cap))
	closedWithout(t, c)
	r.wantReason(policy.ReasonPeekSize)
}

func TestWhatIsNeitherTLSNorHTTPOn443And80IsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example", "*.example.com"))
	for _, port := range []uint16{443, 80} {
		trap := r.trap(port)
		r.names.grant("good.example", trap.Addr()) // a grant is no licence here: a name could have come
		for _, sent := range []string{"SSH-2.0-x\r\n", "EHLO x\r\n", "\x80\x2e\x01\x00\x02", "\x00\x01\x02\x03"} {
			c := r.dial(trap)
			_, _ = io.WriteString(c, sent)
			if got := closedWithout(t, c); len(got) > 0 {
				t.Errorf("after %q came %q", sent, got)
			}
		}
	}
	r.wantReason(policy.ReasonNoName)
}

func TestNoSNIAndAddressSNIAndOldTLSAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	trap := r.trap(443)
	r.names.set("good.example", trap.Addr())
	for what, cfg := range map[string]*tls.Config{
		"no SNI":  {InsecureSkipVerify: true},
		"TLS 1.1": {ServerName: "good.example", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	} {
		err := tls.Client(r.dial(trap), cfg).Handshake()
		if !accessDeniedAlert(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.wantReason(policy.ReasonNoName)
	r.wantReason(policy.ReasonProtocol)
}

func TestAnAddressRuleAllowsWhatNamesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	echo := r.server(443, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	r.policy(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{echo.Addr().String() + "/32"}}, nil)
	c := r.dial(echo)
	_, _ = io.WriteString(c, "SSH-2.0-x\r\n")
	_ = c.CloseWrite()
	if got := closedWithout(t, c); string(got) != "SSH-2.0-x\r\n" {
		t.Errorf("%q", got)
	}
	e := r.wantReason(policy.ReasonAllowedCIDR)
	if e.Action != audit.ActionSplice || e.BytesIn != 11 || e.BytesOut != 11 || e.Verdict != policy.Allow {
		t.Errorf("%+v", e)
	}
}

func TestWhereTheServerSpeaksFirstTheGrantDecides(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("git.example"))
	greet := func(c net.Conn) {
		_, _ = io.WriteString(c, "SSH-2.0-server\n")
		c.Close()
	}
	for _, port := range []uint16{22, 7000} { // one known for it, one on which the client just stays silent
		server := r.server(port, greet)
		r.names.grant("git.example", server.Addr())
		c := r.dial(server)
		if got, err := firstLine(c); err != nil || got != "SSH-2.0-server" {
			t.Errorf("port %d: %q, %v", port, got, err)
		}
		c.Close()
		if e := r.want("splice", func(e audit.Event) bool { return e.Port == port }); e.Name != "git.example" || e.Action != audit.ActionSplice {
			t.Errorf("%+v", e)
		}
		closedOnArrival(t, r.listen(r.trap(port))) // no grant
	}
	r.wantReason(policy.ReasonNotAllowed)
}

func TestSilenceIsNoWayRoundInterception(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("api.example"), func(c *Config) { c.PeekTimeout = time.Second })
	trap := r.trap(8443)
	r.names.grant("api.example", trap.Addr())
	r.policy(allow("api.example"), map[string]map[string]string{"api.example:8443": {"Authorization": "x"}})
	closedWithout(t, r.dial(trap))
	r.wantReason(policy.ReasonPeekTimeout)
	c := r.dial(trap)
	_, _ = io.WriteString(c, "\x00raw bytes")
	closedWithout(t, c)
	r.wantReason(policy.ReasonProtocol)
}

func TestRebindingOnlyGoodAddressesAreUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	owner := r.tlsServer("good.example")
	r.names.set("good.example", netip.MustParseAddr("169.254.169.254"), owner.Addr(), netip.MustParseAddr("::ffff:10.0.0.1"))
	if got, err := r.hello(r.dial(owner), "good.example"); err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
	r.names.set("good.example", netip.MustParseAddr("169.254.169.254"))
	_, err := r.hello(r.dial(owner), "good.example")
	if !accessDeniedAlert(err) {
		t.Fatalf("only a metadata address: %v", err)
	}
	if e := r.wantReason(policy.ReasonProtectedRange); e.Addr != netip.MustParseAddr("169.254.169.254") || e.Verdict != policy.Deny {
		t.Errorf("%+v", e)
	}
}

func TestTheDiallerJudgesTheAddressOfTheSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	trap := r.trap(443)
	to := r.target("good.example")
	r.policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"good.example"}, DeniedCIDRs: []string{trap.Addr().String() + "/32"}}, nil)
	// As if the policy had changed after the candidates were judged.
	c, err := r.p.core.Origins.DialAddr(t.Context(), r.box, to, trap.Addr(), false)
	var denied *policy.DeniedError
	if c != nil || !errors.As(err, &denied) || denied.Decision.Reason != policy.ReasonDeniedCIDR || denied.Request.Stage != policy.StageDial {
		t.Errorf("%v, %v", c, err)
	}
}

func TestUnresolvedAndUnreachableSayWhich(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"))
	owner := r.server(443, func(c net.Conn) { c.Close() })
	if _, err := r.hello(r.dial(owner), "good.example"); err == nil {
		t.Error("a name without an address was served")
	}
	r.wantReason(policy.ReasonUnresolved)
	r.names.set("good.example", netip.MustParseAddr("127.255.255.254")) // nothing listens there
	if _, err := r.hello(r.dial(owner), "good.example"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("unreachable: %v", err)
	}
	if e := r.wantReason(policy.ReasonUnreachable); e.Verdict != policy.Deny || e.Error == "" {
		t.Errorf("%+v", e)
	}
}

func TestOwnAddressesAndTheListenerAreRefused(t *testing.T) {
	own := netip.MustParseAddr("127.0.0.77")
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *Config) { c.Own = []netip.Addr{own} })
	closedOnArrival(t, r.listen(netip.AddrPortFrom(own, 443)))
	if e := r.wantReason(policy.ReasonHostPort); e.Addr != own {
		t.Errorf("%+v", e)
	}
	r.p.originalDst = localAddr // a box that dials the listener itself
	addr := r.listen(netip.AddrPort{})
	closedOnArrival(t, addr)
	r.want("listener", func(e audit.Event) bool {
		return e.Reason == policy.ReasonHostPort && netip.AddrPortFrom(e.Addr, e.Port).String() == addr
	})
	r.names.set("good.example", own)
	c, err := r.p.core.Origins.Dial(t.Context(), r.box, r.target("good.example"))
	var denied *policy.DeniedError
	if c != nil || !errors.As(err, &denied) || denied.Decision.Reason != policy.ReasonHostPort {
		t.Errorf("a name of the gateway: %v", err)
	}
}

// target is where TLS for a name on 443 goes, whatever its address.
func (r *rig) target(name string) origin.Target {
	asked := policy.Request{Box: r.box.ID, Name: mustName(r.t, name), Port: 443, Protocol: policy.TCP}
	return origin.To(r.p.core.Router.Route(r.t.Context(), r.box.Policy.Load(), r.box, asked, policy.Evidence{Opening: policy.OpeningTLS}), true)
}

func mustName(t testing.TB, s string) policy.Name {
	t.Helper()
	n, err := policy.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestUnknownBoxIsClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	addr := r.listen(r.trap(443))
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	if c, err := d.Dial("tcp", addr); err == nil { // the reset may come that early
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		closedWithout(t, c)
	}
	if e := r.wantReason(policy.ReasonUnknownBox); e.Verdict != policy.Deny || e.Box != "" {
		t.Errorf("%+v", e)
	}
}

func TestConnectionLimitCountsFromAcceptAndPerBox(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"), func(c *Config) { c.MaxConns = 3 })
	owner := r.tlsServer("good.example")
	r.names.set("good.example", owner.Addr())
	other := &policy.Box{ID: "box2", V4: netip.MustParseAddr("127.0.0.3")}
	other.Policy.Store(r.box.Policy.Load())
	r.boxes.add(other)
	addr := r.listen(owner)
	var silent []net.Conn
	for range 3 {
		silent = append(silent, dialTo(t, addr)) // not a byte sent
	}
	await(t, "the three connections", func() bool { return len(r.p.live.Of("box1")) == 3 })
	closedOnArrival(t, addr)
	if e := r.wantReason(policy.ReasonLimit); e.Box != "box1" {
		t.Errorf("%+v", e)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: other.V4.AsSlice()}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := r.hello(c, "good.example"); err != nil || got != "hello from good.example" {
		t.Errorf("the other box: %q, %v", got, err)
	}
	silent[0].Close()
	r.want("end of a silent connection", func(e audit.Event) bool { return e.Reason == policy.ReasonNoName })
	await(t, "the end of its connection", func() bool { return len(r.p.live.Of("box1")) < 3 })
	if got, err := r.hello(dialTo(t, addr), "good.example"); err != nil || got != "hello from good.example" {
		t.Errorf("after one was closed: %q, %v", got, err)
	}
}

func TestPanicKillsOneConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("api.example", "good.example"), func(c *Config) { c.Leaves = panicking{} })
	r.policy(allow("api.example", "good.example"), map[string]map[string]string{"api.example": {"Authorization": "x"}})
	owner := r.tlsServer("good.example")
	r.names.set("good.example", owner.Addr())
	other := tls.Client(r.dial(owner), &tls.Config{ServerName: "good.example", RootCAs: r.upstream.pool()})
	if _, err := firstLine(other); err != nil {
		t.Fatal(err)
	}
	if _, err := r.hello(r.dial(owner), "api.example"); err == nil {
		t.Error("a connection that panicked was served")
	}
	if e := r.wantReason(policy.ReasonInternal); e.Verdict != policy.Deny || strings.Contains(e.Error, "secret") {
		t.Errorf("%+v", e)
	}
	_, _ = io.WriteString(other, "still here\n")
	if got, err := firstLine(other); err != nil || got != "still here" {
		t.Errorf("the other connection: %q, %v", got, err)
	}
}

type panicking struct{}

func (panicking) Leaf(context.Context, policy.BoxID, policy.Name) (*tls.Certificate, error) {
	panic("secret")
}

func TestDenyPageAnswersOverTLS(t *testing.T) {
	t.Parallel()
	r := newRig(t, allow("good.example"), func(c *Config) { c.DenyPage = true })
	c := tls.Client(r.dial(r.trap(443)), &tls.Config{ServerName: "bad.example.com", RootCAs: r.boxCA.pool(), NextProtos: []string{"h2", "http/1.1"}})
	if _, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: bad.example.com\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 403 ")) || !bytes.Contains(answer, []byte(`"reason":"not_allowed"`)) {
		t.Errorf("%q, %v", answer, err)
	}
	if e := r.wantReason(policy.ReasonNotAllowed); e.Status != 403 || e.Action != audit.ActionRefuse || e.Verdict != policy.Deny {
		t.Errorf("%+v", e)
	}
}
