package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// live is a server on real sockets with a real upstream; the box is 127.0.0.1.
type live struct {
	*Server
	box      *policy.Box
	upstream *realUpstream
	events   *events
	addr     string
}

func newLive(t *testing.T, spec policy.Spec, z *zone, limits ...Limits) *live {
	t.Helper()
	return newLiveBehind(t, spec, newRealUpstream(t, z, nil), nil, limits...)
}

// newLiveBehind is newLive for a given upstream, which comes after others. It has long timeouts for busy machines.
func newLiveBehind(t *testing.T, spec policy.Spec, up *realUpstream, others []string, limits ...Limits) *live {
	t.Helper()
	l := &live{box: newBox(t, "box1", spec), upstream: up, events: &events{}}
	c := testConfig(t, l.box, l.events, limits...)
	c.Upstreams = append(others, up.addr)
	var err error
	if l.Server, err = New(c); err != nil {
		t.Fatal(err)
	}
	l.up.upstreams[len(others)].timeout, l.cache.timeout, l.tcpIdle = time.Minute, 2*time.Minute, 2*time.Minute
	ln, pc := listenBoth(t)
	l.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- l.ServeUDP(ctx, pc) }()
	go func() { done <- l.ServeTCP(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

func (l *live) ask(t *testing.T, network, name string, qtype uint16) *mdns.Msg {
	t.Helper()
	m, _, err := (&mdns.Client{Net: network, Timeout: time.Minute}).Exchange(newQuery(name, qtype), l.addr)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRealClientOverBothTransports(t *testing.T) {
	t.Parallel()
	l := newLive(t, domains("*.example.com"), newZone(t, "a.example.com. 60 IN CNAME b.cdn.net.", "b.cdn.net. 60 IN A "+goodV4, "r.example.com. 60 IN A 169.254.169.254"))
	for _, network := range []string{"udp", "tcp"} {
		wantAddresses(t, l.ask(t, network, "a.example.com", mdns.TypeA), goodV4)
		if ev := l.events.last(t); ev.Protocol != policy.Protocol(network) || ev.Box != "box1" {
			t.Errorf("event = %+v", ev)
		}
		wantBlocked(t, l.ask(t, network, "r.example.com", mdns.TypeA))
		wantBlocked(t, l.ask(t, network, "evil.org", mdns.TypeA), sinkV4)
	}
	if !l.Granted("box1", mustName(t, "a.example.com"), addr(goodV4)) {
		t.Error("no grant")
	}
}

func TestNothingOfDeniedNamesReachesTheUpstream(t *testing.T) {
	t.Parallel()
	l := newLive(t, domains("ok.example.com"), newZone(t, "ok.example.com. 60 IN A "+goodV4))
	tunnel := strings.Repeat(strings.Repeat("x", 60)+".", 3) + "evil.org"
	for _, network := range []string{"udp", "tcp"} {
		for _, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeTXT, mdns.TypeNULL, mdns.TypeANY, mdns.TypeAXFR, mdns.TypeHTTPS} {
			l.ask(t, network, tunnel, qtype)
		}
	}
	wantAddresses(t, l.ask(t, "udp", "ok.example.com", mdns.TypeA), goodV4)
	for _, r := range l.upstream.queries() {
		if !strings.EqualFold(r.msg.Question[0].Name, "ok.example.com.") {
			t.Errorf("upstream received %v", r.msg.Question)
		}
	}
	if len(l.upstream.queries()) != 1 {
		t.Errorf("upstream received %d queries", len(l.upstream.queries()))
	}
}

func TestUnknownSourceIsRefused(t *testing.T) {
	t.Parallel()
	l := newLive(t, policy.Spec{Mode: policy.ModeAllowAll}, newZone(t, "a.example.com. 60 IN A "+goodV4))
	stranger := &mdns.Client{Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 9)}}}
	m, _, err := stranger.Exchange(newQuery("a.example.com", mdns.TypeA), l.addr)
	if err != nil || m.Rcode != mdns.RcodeRefused {
		t.Errorf("got %v, %v", m, err)
	}
	stranger = &mdns.Client{Net: "tcp", Dialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}}
	if m, _, err := stranger.Exchange(newQuery("a.example.com", mdns.TypeA), l.addr); err == nil {
		t.Errorf("got %v", m)
	}
	for _, ev := range l.events.all() {
		wantEvent(t, ev, policy.Deny, audit.ActionRefuse, name.ReasonUnknownBox)
	}
	if n := len(l.upstream.queries()); n > 0 {
		t.Errorf("upstream received %d queries", n)
	}
}

func TestLongAnswersAreTruncatedOverUDPAndWholeOverTCP(t *testing.T) {
	t.Parallel()
	var lines []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("big.example.com. 60 IN A 93.184.217.%d", i))
	}
	l := newLive(t, domains("big.example.com"), newZone(t, lines...))
	for _, tc := range []struct {
		size  uint16 // of the client's OPT; 0: no OPT
		limit int
	}{{0, 512}, {100, 512}, {512, 512}, {800, 800}, {1232, 1232}, {4096, 1232}} {
		q := new(mdns.Msg).SetQuestion("big.example.com.", mdns.TypeA)
		if tc.size > 0 {
			q.SetEdns0(tc.size, true)
		}
		conn, err := net.Dial("udp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		wire, _ := q.Pack()
		conn.Write(wire)
		buf := make([]byte, 65536)
		n, err := conn.Read(buf)
		conn.Close()
		if err != nil {
			t.Fatal(err)
		}
		m := unpack(t, buf[:n])
		if n > tc.limit || !m.Truncated || n < tc.limit-40 {
			t.Errorf("size %d: %d bytes, TC %v", tc.size, n, m.Truncated)
		}
		if opt := m.IsEdns0(); (opt != nil) != (tc.size > 0) || opt != nil && (opt.UDPSize() != udpSize || !opt.Do()) {
			t.Errorf("size %d: OPT is %v", tc.size, opt)
		}
	}
	m := l.ask(t, "tcp", "big.example.com", mdns.TypeA)
	if m.Truncated || len(m.Answer) != 100 {
		t.Errorf("TCP: %d records, TC %v", len(m.Answer), m.Truncated)
	}
	// Addresses truncated from the datagram are granted as well: the client may ask again over TCP.
	if !l.Granted("box1", mustName(t, "big.example.com"), addr("93.184.217.99")) {
		t.Error("not all addresses were granted")
	}
}

func TestManyQueriesOnOneConnection(t *testing.T) {
	t.Parallel()
	var lines []string
	for i := range 50 {
		lines = append(lines, fmt.Sprintf("n%d.example.com. 60 IN A %s", i, goodV4))
	}
	l := newLive(t, domains("*.example.com"), newZone(t, lines...))
	conn, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	want := map[uint16]bool{}
	for i := range 50 {
		q := newQuery(fmt.Sprintf("n%d.example.com", i), mdns.TypeA)
		q.Id = uint16(i)
		want[q.Id] = true
		wire, _ := q.Pack()
		if err := writeMessage(conn, wire); err != nil {
			t.Fatal(err)
		}
	}
	conn.(*net.TCPConn).CloseWrite()
	for range 50 {
		wire, err := readMessage(conn, mdns.MaxMsgSize)
		if err != nil {
			t.Fatal(err)
		}
		m := unpack(t, wire)
		wantAddresses(t, m, goodV4)
		delete(want, m.Id)
	}
	if len(want) > 0 {
		t.Errorf("no answers to %v", want)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the client was done: %v", err)
	}
}

// TestTCPConnectionsAreLimitedPerBox checks the limit of connections with queries in progress.
func TestTCPConnectionsAreLimitedPerBox(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4)
	release, asked := make(chan struct{}), make(chan struct{}, 3)
	z.before = func() { asked <- struct{}{}; <-release }
	l := newLive(t, domains("a.example.com"), z, Limits{TCPConns: 3})
	var conns []net.Conn
	for range 3 {
		conn := l.dialTCP(t)
		conns = append(conns, conn)
		wire, _ := newQuery("a.example.com", mdns.TypeA).Pack()
		if err := writeMessage(conn, wire); err != nil {
			t.Fatal(err)
		}
	}
	<-asked
	busy := func() (n int) {
		use := l.usages.usageOf(l.box)
		use.tcp.mu.Lock()
		defer use.tcp.mu.Unlock()
		for e := use.tcp.list.Front(); e != nil; e = e.Next() {
			n += e.Value.(*tcpConn).inFlight
		}
		return n
	}
	for deadline := time.Now().Add(time.Minute); busy() < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the queries are not under way")
		}
	}
	extra := l.dialTCP(t)
	if n, err := extra.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a connection over the limit", n)
	}
	wantEvent(t, l.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonLimit)
	close(release)
	for _, conn := range conns {
		if _, err := readMessage(conn, mdns.MaxMsgSize); err != nil {
			t.Error(err)
		}
	}
	wantAddresses(t, l.ask(t, "udp", "a.example.com", mdns.TypeA), goodV4)
}

// TestIdleTCPConnectionsLeaveRoom checks that a box with 200 idle connections is answered over TCP without delay, that
// the connection used last stays, and that the limit holds.
func TestIdleTCPConnectionsLeaveRoom(t *testing.T) {
	t.Parallel()
	l := newLive(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4), Limits{TCPConns: 3})
	use := l.usages.usageOf(l.box)
	ask := func(conn net.Conn) {
		t.Helper()
		roundTripOver(t, conn)
		// When the client has the answer, the server may not have marked the connection idle yet.
		idle := func() bool {
			use.tcp.mu.Lock()
			defer use.tcp.mu.Unlock()
			for e := use.tcp.list.Front(); e != nil; e = e.Next() {
				if e.Value.(*tcpConn).inFlight > 0 {
					return false
				}
			}
			return true
		}
		for deadline := time.Now().Add(time.Minute); !idle(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("a connection stays busy")
			}
		}
	}
	used := l.dialTCP(t)
	ask(used)
	for range 200 {
		ask(l.dialTCP(t)) // so that it has been accepted
		ask(used)
	}
	use.tcp.mu.Lock()
	defer use.tcp.mu.Unlock()
	if n := use.tcp.list.Len(); n > 3 {
		t.Errorf("%d connections", n)
	}
}

func (l *live) dialTCP(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func roundTripOver(t *testing.T, conn net.Conn) {
	t.Helper()
	wire, _ := newQuery("a.example.com", mdns.TypeA).Pack()
	if err := writeMessage(conn, wire); err != nil {
		t.Fatal(err)
	}
	if _, err := readMessage(conn, mdns.MaxMsgSize); err != nil {
		t.Fatal(err)
	}
}

func TestBadFramesCloseTheConnection(t *testing.T) {
	t.Parallel()
	l := newLive(t, domains("a.example.com"), newZone(t))
	for _, frame := range []string{"\xff\xffGET / HTTP/1.1\r\n", "\x00\x00", "\x00\x04abcd"} {
		conn, err := net.Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(l.tcpIdle / 2))
		io.WriteString(conn, frame)
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("%q: read %d, %v; want a closed connection", frame, n, err)
		}
		conn.Close()
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestServingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t))
	release := make(chan struct{})
	defer close(release)
	asked := make(chan struct{}, 1)
	b.zone.before = func() { asked <- struct{}{}; <-release }
	ln, pc := listenBoth(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- b.ServeUDP(ctx, pc) }()
	go func() { done <- b.ServeTCP(ctx, ln) }()
	idle, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	client, err := net.Dial("udp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	wire, _ := newQuery("a.example.com", mdns.TypeA).Pack()
	client.Write(wire)
	<-asked
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	buf := make([]byte, 512)
	if n, err := client.Read(buf); err != nil || unpack(t, buf[:n]).Rcode != mdns.RcodeServerFailure {
		t.Errorf("the query under way got %v", err)
	}
	if _, err := idle.Read(buf); err == nil {
		t.Error("an idle connection outlived the server")
	}
}

func TestDig(t *testing.T) {
	t.Parallel()
	dig, err := exec.LookPath("dig")
	if err != nil {
		return // the tests above use another real client
	}
	l := newLive(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4))
	host, port, _ := net.SplitHostPort(l.addr)
	run := func(args ...string) string {
		out, err := exec.Command(dig, append([]string{"@" + host, "-p", port, "+tries=1"}, args...)...).CombinedOutput()
		if err != nil {
			t.Errorf("dig %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	for _, transport := range []string{"+notcp", "+tcp"} {
		if out := run(transport, "+short", "a.example.com"); strings.TrimSpace(out) != goodV4 {
			t.Errorf("dig printed %q", out)
		}
		out := run(transport, "evil.org")
		if !strings.Contains(out, sinkV4) || !strings.Contains(out, "EDE: 15 (Blocked)") {
			t.Errorf("dig printed\n%s", out)
		}
	}
	if got := l.upstream.queries(); len(got) != 1 || !slices.Contains([]string{"udp"}, got[0].network) {
		t.Errorf("upstream received %v", got)
	}
}

func TestConfigMistakes(t *testing.T) {
	t.Parallel()
	good := testConfig(t, newBox(t, "b", domains("a.example.com")), &events{})
	good.Upstreams = []string{"192.0.2.1"}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Config){
		"no boxes":     func(c *Config) { c.Boxes = nil },
		"no audit":     func(c *Config) { c.Audit = nil },
		"no upstream":  func(c *Config) { c.Upstreams = nil },
		"bad upstream": func(c *Config) { c.Upstreams = []string{"https://x/"} },
		"no sink":      func(c *Config) { c.SinkV4 = addr("::1") },
		"no IPv6 sink": func(c *Config) { c.SinkV6 = addr("10.0.0.1") },
	} {
		c := good
		change(&c)
		if s, err := New(c); err == nil || s != nil {
			t.Errorf("%s: accepted", what)
		}
	}
}
