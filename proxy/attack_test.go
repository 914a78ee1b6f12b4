package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// deaf returns a server that fails the test if it receives data. It sends first when a client connects.
func deaf(r *proxytest.Rig, port uint16, first string) netip.AddrPort {
	r.T.Helper()
	return r.Server(port, func(c net.Conn) {
		defer c.Close()
		_, _ = io.WriteString(c, first)
		b := make([]byte, 64)
		if n, _ := c.Read(b); n > 0 {
			r.T.Errorf("the server was told %q", b[:n])
		}
	})
}

// httpOn is a server that answers requests with 204 and reports each connection on reached.
func httpOn(r *proxytest.Rig, port uint16, reached chan<- struct{}) netip.AddrPort {
	return r.Server(port, func(c net.Conn) {
		defer c.Close()
		reached <- struct{}{}
		for in := bufio.NewReader(c); ; {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
}

// A lenient server may treat bytes as a request, or as TLS, that a strict parser does not, and the first segment need not
// show it yet.
func TestAttackFirstBytesThatBecomeARequestLater(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, judged(policy.Spec{Mode: policy.ModeAllowAll}))
	r.Names.Set("api.example", netip.MustParseAddr("127.9.9.9"))
	const rest = " / HTTP/1.1\r\nHost: x.wild.example\r\nConnection: close\r\n\r\n"
	for what, first := range map[string]string{
		"an empty line":                    "\r\n",
		"white space":                      " \t",
		"an empty line, half a method":     "\r\nGE",
		"an empty line, half a line":       "\n\nFETCH /a",
		"an empty line, a rare method":     "\r\nFETCH" + rest,
		"a method of odd characters":       "X.Y!" + rest,
		"a long method":                    strings.Repeat("A", 40) + rest,
		"half a long method":               strings.Repeat("A", 40),
		"a space behind the version":       "FETCH / HTTP/1.1 \r\nHost: x.wild.example\r\n\r\n",
		"a hello in the form of SSL 2.0":   "\x80\x2e\x01\x03\x03\x00\x15\x00\x00\x00\x10",
		"half a hello in that form":        "\x80\x2e",
		"the beginning of HTTP/2 in clear": "PRI * HTTP/2.0\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			c := r.Dial(deaf(r, 7005, ""))
			_, _ = io.WriteString(c, first)
			got, _ := io.ReadAll(c)
			if len(got) > 0 && !strings.HasPrefix(string(got), "HTTP/1.1 421") { // 421: judged, and its port is not that of the connection
				t.Errorf("answered %q", got)
			}
		})
	}
}

// A server of cleartext HTTP/2 may send its settings before the client has sent anything.
func TestAttackSilenceUntilAnHTTP2ServerSpeaks(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, judged(policy.Spec{Mode: policy.ModeAllowAll}), func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
	r.Names.Set("api.example", netip.MustParseAddr("127.9.9.9"))
	settings := "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"
	server := deaf(r, 7006, settings)
	c := r.Dial(server)
	b := make([]byte, len(settings))
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) // long enough for a tunnel
	if n, _ := c.Read(b); n > 0 {
		t.Errorf("%q passed", b[:n])
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if got, _ := io.ReadAll(c); len(got) > 0 {
		t.Errorf("%q passed", got)
	}
}

// Under a policy that denies names, an address in Host does not count as a name.
func TestAttackAddressAsHostWhereNamesDecide(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}})
	trap := deaf(r, 7007, "")
	c := r.Dial(trap)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+trap.String()+"\r\nConnection: close\r\n\r\n")
	if got, _ := io.ReadAll(c); !strings.HasPrefix(string(got), "HTTP/1.1 403") {
		t.Errorf("answered %q", got)
	}
	r.WantReason(name.ReasonNoName)
	proxied := proxytest.DialTo(t, r.Explicit())
	_, _ = io.WriteString(proxied, "GET http://"+trap.String()+"/ HTTP/1.1\r\nHost: "+trap.String()+"\r\nConnection: close\r\n\r\n")
	if got, _ := io.ReadAll(proxied); !strings.HasPrefix(string(got), "HTTP/1.1 403") {
		t.Errorf("the explicit proxy answered %q", got)
	}
}

// A second name for the address of a host with rules does not give unread access to that host.
func TestAttackSecondNameForAHostWithRules(t *testing.T) {
	for what, spec := range map[string]func(netip.Addr) policy.Spec{
		"allow-all": func(netip.Addr) policy.Spec { return policy.Spec{Mode: policy.ModeAllowAll} },
		"addresses": func(a netip.Addr) policy.Spec { return cidr(a) },
		"any name":  func(netip.Addr) policy.Spec { return proxytest.Allow("*") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll}, func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
			traps := []netip.AddrPort{r.Trap(80), r.Trap(7008)}
			r.Names.Set("api.example", traps[0].Addr(), traps[1].Addr())
			for _, trap := range traps {
				r.Names.Set("alias.example", trap.Addr())
				r.Names.Grant("alias.example", trap.Addr())
				r.Policy(judged(spec(trap.Addr())), nil)
				connect := "CONNECT alias.example:" + strings.Split(trap.String(), ":")[1] + " HTTP/1.1\r\n\r\n"
				for _, first := range []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\r\nPOST / HTTP/1.1\r\nHost: api.example\r\n\r\n", "\x00\x01"} {
					c := r.Dial(trap)
					_, _ = io.WriteString(c, first)
					_, _ = io.ReadAll(c)
					c = proxytest.DialTo(t, r.Explicit())
					_, _ = io.WriteString(c, connect)
					if got, _ := proxytest.FirstLine(c); strings.HasPrefix(got, "HTTP/1.1 200") {
						_, _ = proxytest.FirstLine(c)
						_, _ = io.WriteString(c, first)
						_, _ = io.ReadAll(c)
					}
				}
			}
		})
	}
}

// A rule for every host also applies to connections without a name.
func TestAttackNoNameUnderARuleForEveryHost(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	for _, port := range []uint16{80, 443, 8443} {
		trap := r.Trap(port)
		spec := cidr(trap.Addr())
		spec.Rules = []match.RequestRule{{Hosts: []string{"*"}, Methods: []string{"POST"}, Action: "deny"}}
		r.Policy(spec, nil)
		if err := withoutName(r.Dial(trap)); err == nil {
			t.Errorf("port %d: the handshake succeeded", port)
		}
		c := r.Dial(trap)
		_, _ = io.WriteString(c, "\x00\x01")
		_, _ = io.ReadAll(c)
		c = r.Dial(trap)
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+trap.String()+"\r\nConnection: close\r\n\r\n")
		if got, _ := io.ReadAll(c); len(got) > 0 && !strings.HasPrefix(string(got), "HTTP/1.1 4") {
			t.Errorf("port %d answered %q", port, got)
		}
	}
}

// halting is a resolver whose lookups, once that is switched on, block until their contexts end.
type halting struct {
	*proxytest.Names
	mu      sync.Mutex
	halted  bool
	waiting chan struct{} // receives a value for each blocked lookup
}

func (h *halting) halt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.halted = true
}

func (h *halting) Lookup(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	h.mu.Lock()
	halted := h.halted
	h.mu.Unlock()
	if halted {
		select {
		case h.waiting <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Names.Lookup(ctx, b, n)
}

func (h *halting) LookupBoth(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	return h.Lookup(ctx, b, n)
}

// A request for a name whose DNS server is slow delays neither a change of the policy nor the removal of the box.
func TestAttackSlowNameHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, cidr(netip.MustParseAddr("127.9.9.9")))
	slow := &halting{Names: r.Names, halted: true, waiting: make(chan struct{}, 1)}
	r.Resolver.Set(slow)
	c := proxytest.DialTo(t, r.Explicit())
	_, _ = io.WriteString(c, "GET http://slow.example/ HTTP/1.1\r\nHost: slow.example\r\n\r\n")
	<-slow.waiting
	began := time.Now()
	r.Proxy.CloseBox("box1")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the box was closed after %v", took)
	}
}

// unanswering is a resolver that answers no lookup. It counts the waiting ones.
type unanswering struct {
	*proxytest.Names
	mu        sync.Mutex
	now, most int
}

func (s *unanswering) LookupBoth(ctx context.Context, _ *policy.Box, _ name.Name) ([]netip.Addr, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	return nil, ctx.Err()
}

func (s *unanswering) Lookup(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	return s.LookupBoth(ctx, b, n)
}

func (*unanswering) Granted(policy.BoxID, name.Name, netip.Addr) bool { return false }

// Spliced connections for names whose DNS servers are slow wait for them at the same time when the policy changes. One after the other,
// they would keep denied connections open for as long as their box likes.
func TestAttackSlowNamesOfTunnelsDelayNoCut(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	slow, denied := r.TLSServer("a.slow.example"), r.TLSServer("a.example")
	tunnels := 10 * runtime.GOMAXPROCS(0)
	for range tunnels {
		open(r, slow, "a.slow.example")
	}
	c := open(r, denied, "a.example")
	names := &unanswering{Names: r.Names}
	r.Resolver.Set(names)
	r.Policy(proxytest.Allow("a.slow.example"), nil)
	r.Proxy.Recheck("box1")
	if echoes(r, c) {
		t.Error("a denied connection still forwards data")
	}
	names.mu.Lock()
	defer names.mu.Unlock()
	if names.most <= tunnels/2 {
		t.Errorf("at most %d lookups waited at the same time, for %d tunnels", names.most, tunnels)
	}
}

// While DNS does not answer, a change of the policy cuts only the connections that it concerns: the addresses of hosts with
// rules are still cached.
func TestSlowDNSCutsNoConnectionThatIsStillAllowed(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	api, other := r.TLSServer("api.example"), r.TLSServer("other.example")
	slow := &halting{Names: r.Names}
	r.Resolver.Set(slow)
	r.Names.Set("api.example", api.Addr())
	r.Policy(judged(cidr(api.Addr(), other.Addr())), nil)
	c := tls.Client(r.Dial(other), &tls.Config{InsecureSkipVerify: true})
	if _, err := proxytest.FirstLine(c); err != nil {
		t.Fatal(err)
	}
	slow.halt()
	r.Core.Router.Refresh(r.Box.ID) // as if the cache had expired
	r.Policy(judged(cidr(api.Addr(), other.Addr(), netip.MustParseAddr("127.9.9.9"))), nil)
	r.Proxy.Recheck("box1")
	if !echoes(r, c) {
		t.Error("a connection that is still allowed was cut")
	}
}

// NAT64 (RFC 6052) gives a host a second address that need not occur in a DNS answer.
func TestAttackHostWithRulesByNAT64(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	const plain, translated = "192.0.2.5", "64:ff9b::192.0.2.5"
	spec := judged(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{plain}})
	pol, err := policy.Compile(spec, policy.Options{Version: 1, Protected: name.NewProtected([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, nil)})
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(translated), 443)
	for what, set := range map[string]func(string, ...netip.Addr){"found": r.Names.Set, "told": r.Names.Grant} {
		r.Names.Forget()
		r.Names.Set("api.example")
		r.Core.Router.Forget(r.Box.ID)
		set("api.example", netip.MustParseAddr(plain))
		if d := pol.Decide(policy.Request{Stage: policy.StageConn, Addr: to.Addr(), Port: 443, Protocol: policy.TCP}); !d.Allowed() {
			t.Fatalf("%+v", d)
		}
		asked := policy.Request{Box: r.Box.ID, Addr: to.Addr(), Port: to.Port(), Protocol: policy.TCP}
		if rt := r.Core.Router.Route(t.Context(), pol, r.Box, asked, policy.Evidence{Opening: policy.OpeningTLS}); rt.Action != policy.Refuse {
			t.Errorf("%s at %s, but not recognized at %s", what, plain, translated)
		}
	}
}

// half is a resolver that returns one family and waits for the other.
type half struct{ *proxytest.Names }

func (h half) LookupBoth(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	addrs, _ := h.Lookup(ctx, b, n)
	return addrs, errors.New("no answer for AAAA")
}

// If one family of a host with rules could not be resolved, any address of that family may be the host's.
func TestAttackHostWithRulesByTheFamilyThatDNSOwes(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	trap := r.Trap(443)
	r.Resolver.Set(half{r.Names})
	r.Names.Set("api.example", netip.MustParseAddr("127.9.9.9"))
	r.Policy(judged(cidr(trap.Addr())), nil)
	if err := withoutName(r.Dial(trap)); err == nil {
		t.Error("the handshake succeeded")
	}
	r.WantReason(name.ReasonNoName)
}

// The decision for a silent client no longer counts after the client has sent a name.
func TestConnectionThatSpokeLateIsNotCutForItsSilence(t *testing.T) {
	open := policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}}
	t.Parallel()
	r := proxytest.New(t, open, func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
	reached := make(chan struct{}, 4)
	server := httpOn(r, 7009, reached)
	r.Names.Set("good.example", server.Addr())
	c := r.Dial(server)
	<-reached // neither side has sent anything
	request := func() string {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: good.example:7009\r\n\r\n")
		line, _ := proxytest.FirstLine(c)
		for rest := line; strings.TrimSpace(rest) != ""; {
			rest, _ = proxytest.FirstLine(c)
		}
		return strings.TrimSpace(line)
	}
	if got := request(); got != "HTTP/1.1 204 No Content" {
		t.Fatalf("answered %q", got)
	}
	r.Policy(proxytest.Allow("good.example"), nil) // which nameless connections do not match
	r.Proxy.Recheck("box1")
	if got := request(); got != "HTTP/1.1 204 No Content" {
		t.Errorf("after the change, answered %q", got)
	}
}

// forged is an unsolicited response.
const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"

// onceServer is a server whose first connection is answered by first. Further requests on it, and those on other
// connections, are answered with "true".
func onceServer(r *proxytest.Rig, secure bool, first func(net.Conn)) uint16 {
	var conns atomic.Int32
	handle := func(c net.Conn, in *bufio.Reader) {
		for n := conns.Add(1); ; n++ {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			if n == 1 {
				first(c)
				continue
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
		}
	}
	if !secure {
		return r.RawListen(nil, handle)
	}
	return r.RawListen(&tls.Config{GetCertificate: r.Upstream.ForHello, DynamicRecordSizingDisabled: true}, handle)
}

// delivered waits until the peer has acknowledged all data written to a connection.
func delivered(t testing.TB, c net.Conn) {
	proxytest.Await(t, "the acknowledgement", func() bool {
		left := -1
		control(t, c, func(fd int) (err error) {
			left, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
			return err
		})
		return left == 0
	})
}

func control(t testing.TB, c net.Conn, f func(fd int) error) {
	t.Helper()
	tcp, _ := socket.TCP(c)
	raw, err := tcp.SyscallConn()
	if err == nil {
		if failed := raw.Control(func(fd uintptr) { err = f(int(fd)) }); failed != nil {
			err = failed
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// TestAttackBodyBehindAResponseWithout: a body that follows a response without one is not taken as the next response.
func TestAttackBodyBehindAResponseWithout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ method, response string }{
		"HEAD":   {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n"},
		"204":    {"GET", "HTTP/1.1 204 No Content\r\n\r\n"},
		"304":    {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 45\r\n\r\n"},
		"length": {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", secure), func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				read, sent := make(chan struct{}), make(chan struct{})
				port := onceServer(l, secure, func(s net.Conn) {
					_, _ = io.WriteString(s, c.response)
					<-read
					_, _ = io.WriteString(s, forged)
					delivered(t, s)
					close(sent)
				})
				l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
				conn := l.DialPair(proxytest.API, port, secure)
				in := bufio.NewReader(conn)
				host := " / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
				_ = proxytest.Ask(t, conn, in, c.method+host, c.method)
				close(read)
				<-sent
				if got := proxytest.ReadAll(t, proxytest.Ask(t, conn, in, "GET"+host, "GET").Body); got != "true" {
					t.Errorf("the next response is %q", got)
				}
			})
		}
	}
}

// TestAttackResponseBehindAnother: data that arrives together with a response is not taken as the next one, whatever the
// sizes of the gateway's buffers.
func TestAttackResponseBehindAnother(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, 4 << 10, 8 << 10} {
		for _, how := range []string{"plain", "one record", "another record"} {
			t.Run(fmt.Sprint(how, " ", size), func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				port := onceServer(l, how != "plain", func(s net.Conn) {
					head := "HTTP/1.1 200 OK\r\nContent-Length: "
					body := size - len(head) - 8
					response := fmt.Sprintf("%s%4d\r\n\r\n%s", head, body, strings.Repeat("x", body))
					if how != "another record" {
						_, _ = io.WriteString(s, response+forged)
						return
					}
					control(t, s, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
					_, _ = io.WriteString(s, response)
					_, _ = io.WriteString(s, forged)
					control(t, s, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, 0) })
				})
				l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
				conn := l.DialPair(proxytest.API, port, how != "plain")
				in := bufio.NewReader(conn)
				request := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
				_ = proxytest.ReadAll(t, proxytest.Ask(t, conn, in, request, "GET").Body)
				if got := proxytest.ReadAll(t, proxytest.Ask(t, conn, in, request, "GET").Body); got != "true" {
					t.Errorf("the next response is %q", got)
				}
			})
		}
	}
}

// TestTimeoutOfTheServerIsNoAnswer: a client is slow to send a request, and the server times out in that time.
func TestTimeoutOfTheServerIsNoAnswer(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	begun, sent := make(chan struct{}), make(chan struct{})
	port := onceServer(l, false, func(s net.Conn) {
		_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		<-begun
		_, _ = io.WriteString(s, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
		delivered(t, s)
		close(sent)
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	conn := l.DialPair(proxytest.API, port, false)
	in := bufio.NewReader(conn)
	request := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
	_ = proxytest.ReadAll(t, proxytest.Ask(t, conn, in, request, "GET").Body)
	_, _ = io.WriteString(conn, request[:1])
	l.Events.Wait(t, 1)
	since := time.Now()
	close(begun)
	<-sent
	proxytest.Await(t, "the time after which the connection is looked at", func() bool { return time.Since(since) > 300*time.Millisecond })
	res := proxytest.Ask(t, conn, in, request[1:], "GET")
	if got := proxytest.ReadAll(t, res.Body); res.StatusCode != 200 || got != "true" {
		t.Errorf("%s %q", res.Status, got)
	}
}

// TestFailedRequestIsSentOnceMore: a request that failed on a kept connection is retried exactly once, although other kept
// connections would fail as well.
func TestFailedRequestIsSentOnceMore(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	const kept = 3
	var together sync.WaitGroup
	together.Add(kept)
	var conns, requests atomic.Int32
	port := l.RawServer(false, func(s net.Conn, in *bufio.Reader) {
		n := conns.Add(1)
		for first := true; ; first = false {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			if requests.Add(1); !first {
				return // without a response
			}
			if n <= kept {
				together.Done()
				together.Wait()
			}
			_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	request := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
	var all sync.WaitGroup
	for range kept {
		conn := l.DialPair(proxytest.API, port, false)
		all.Go(func() {
			_, _ = io.WriteString(conn, request)
			_, _ = http.ReadResponse(bufio.NewReader(conn), nil)
		})
	}
	all.Wait()
	proxytest.Await(t, "the connections kept", func() bool { return proxytest.IdleUpstreams(l) == kept })
	conn := l.DialPair(proxytest.API, port, false)
	if got := proxytest.ReadAll(t, proxytest.Ask(t, conn, bufio.NewReader(conn), request, "GET").Body); got != "true" {
		t.Errorf("%q", got)
	}
	if n := requests.Load(); n != kept+2 {
		t.Errorf("the server saw %d requests, want %d", n, kept+2)
	}
}

// A box aborts its tunnels while their pipes contain unread data. That data must not reach another box's tunnels, which get
// the same pipes.
func TestBytesOfABrokenTunnelReachNoOther(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.MaxPipes = 4 })
	foreign := bytes.Repeat([]byte("of another box "), 1<<16)
	flood := r.Server(7021, func(c net.Conn) {
		defer c.Close()
		for {
			if _, err := c.Write(foreign); err != nil {
				return
			}
		}
	})
	const size = 3 << 20
	zeros := r.Server(7022, func(c net.Conn) {
		defer c.Close()
		_, _ = io.ReadFull(c, make([]byte, 2))
		_, _ = c.Write(make([]byte, size))
	})
	lent := r.Core.Tunnels.Pipes
	floods, second := r.Listen(flood), second(r)
	quiet := r.Listen(zeros)
	for round := range 20 {
		c := proxytest.DialTo(t, floods)
		_, _ = io.WriteString(c, "x\n")
		proxytest.Await(t, "a pipe that is stuck", func() bool { return lent() > 0 })
		_ = c.SetLinger(0) // a reset
		_ = c.Close()
		proxytest.Await(t, "its end", func() bool { return lent() == 0 })
		other := second(quiet)
		_, _ = io.WriteString(other, "x\n")
		got, err := io.ReadAll(other)
		if len(got) != size || len(bytes.Trim(got, "\x00")) > 0 {
			t.Fatalf("round %d: %d of %d bytes, %.60q, %v", round, len(got), size, bytes.Trim(got, "\x00"), err)
		}
	}
}
