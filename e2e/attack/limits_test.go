package attack

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
	"boxgate/policy/name"
)

// limitsOfTest are low, so that a flood stays small.
var limitsOfTest = config.Limits{
	Connections: 100, NewConnections: 200, Interceptions: 8, Streams: 100, Requests: 1000, Upstreams: 50,
	KernelFlows: 5000, DNSQueries: 60,
	PeekTimeout: time.Minute, QuotaPeriod: 24 * time.Hour, Memory: 256 << 20,
}

func TestAttackFloodsOfOneBoxDoNotReachTheOthers(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Limits = limitsOfTest })
	attacker, honest := w.Intrude(w.SecretBox()), w.SecretBox()
	var said lab.SyncBuffer
	ended := w.Background(honest, `n=0; until [ -e stop ]; do
		curl -sS -f -o /dev/null https://api.example.com/echo || echo failed; n=$((n+1)); [ $n = 1 ] && echo began; sleep 0.1
	done; echo "$n requests"`, &said)
	if err := said.Await(t.Context(), "began"); err != nil {
		t.Fatalf("the honest box: %v: %s", err, said.String())
	}

	holdInterceptions(attacker)
	floodDNS(attacker, 3000)
	floodConnections(attacker, 2000)

	w.MustSh(honest, "touch stop")
	if code, err := ended(); code != 0 || err != nil || strings.Contains(said.String(), "failed") {
		t.Errorf("the other box noticed the floods (%d, %v): %s", code, err, said.String())
	}
	for _, e := range w.Events(honest) {
		if e.Reason == name.ReasonLimit {
			t.Errorf("the other box was limited: %s", audit.Line(e))
		}
	}
}

// holdInterceptions opens one more intercepted connection than allowed.
func holdInterceptions(in *harness.Intruder) {
	in.T.Helper()
	since := time.Now()
	var held []net.Conn
	for range limitsOfTest.Interceptions {
		c := in.DialHost("api.example.com", 443)
		in.TLS(c, "api.example.com")
		held = append(held, c)
	}
	c := in.DialHost("api.example.com", 443)
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	err := tls.Client(c, &tls.Config{ServerName: "api.example.com", RootCAs: in.Roots}).Handshake()
	if err == nil || !strings.Contains(err.Error(), "connection reset") {
		in.T.Errorf("one interception too many ended with %v", err)
	}
	if e := in.Denied(since, policy.StageConn, name.ReasonLimit); e.Name != "api.example.com" {
		in.T.Errorf("decision %+v", e)
	}
	for _, c := range held {
		c.Close()
	}
}

// floodDNS sends many queries in a burst and does not read the answers.
func floodDNS(in *harness.Intruder, queries int) {
	in.T.Helper()
	since := time.Now()
	err := in.InNetNS(func() error {
		c, err := net.Dial("udp", in.DNS)
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range queries {
			q, err := new(mdns.Msg).SetQuestion(fmt.Sprintf("q%d.api.example.com.", i), mdns.TypeA).Pack()
			if err != nil {
				return err
			}
			_, _ = c.Write(q) // the error of an earlier query
		}
		return nil
	})
	if err != nil {
		in.T.Fatal(err)
	}
	in.Denied(since, policy.StageDNS, name.ReasonLimit)
	most := 20 + int(25*time.Since(since).Seconds()) // events of one interval are reported together
	if lines, _ := limited(in, since, policy.StageDNS); lines > most {
		in.T.Errorf("%d events tell of one flood of queries", lines)
	}
	if q := in.Net.Queries("q0.api.example.com"); len(q) != 0 {
		in.T.Errorf("the names went upstream: %+v", q)
	}
}

// floodConnections opens connections with an endless ClientHello.
func floodConnections(in *harness.Intruder, attempts int) {
	in.T.Helper()
	since := time.Now()
	to := netip.AddrPortFrom(in.V4("www.example.com"), 443)
	var open []net.Conn
	err := in.InNetNS(func() error {
		for range attempts {
			c, err := net.DialTimeout("tcp", to.String(), 10*time.Second)
			if err != nil {
				continue // reset before the kernel reported the connection
			}
			_, _ = io.WriteString(c, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") // the connection may have ended
			open = append(open, c)
		}
		return nil
	})
	if err != nil {
		in.T.Fatal(err)
	}
	refused := uint64(attempts - limitsOfTest.Connections)
	lines, count := 0, uint64(0)
	in.UntilEvery(20*time.Millisecond, "every refusal is told", func() bool {
		lines, count = limited(in, since, policy.StageConn)
		return count >= refused
	})
	if count != refused {
		in.T.Errorf("of %d connections %d were refused for a limit, want all but %d", attempts, count, limitsOfTest.Connections)
	}
	if lines > 60+int(25*time.Since(since).Seconds()) {
		in.T.Errorf("%d events tell of one flood of connections", lines)
	}
	stayOpen(in, open, limitsOfTest.Connections)
}

// stayOpen fails the test unless exactly the given number of connections is not reset, and closes them.
func stayOpen(in *harness.Intruder, conns []net.Conn, want int) {
	in.T.Helper()
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	still := func() (n int) {
		for _, c := range conns {
			if !isCut(in.T, c) {
				n++
			}
		}
		return n
	}
	in.UntilEvery(20*time.Millisecond, "the refused ones are reset", func() bool { return still() <= want })
	since := time.Now()
	in.UntilEvery(20*time.Millisecond, "others would have been reset", func() bool { return time.Since(since) > 500*time.Millisecond })
	if n := still(); n != want {
		in.T.Errorf("%d connections stay open, want %d", n, want)
	}
}

// limited returns the number of events about refusals for a limit at a stage, and the number of refusals in them.
func limited(in *harness.Intruder, since time.Time, stage policy.Stage) (lines int, refusals uint64) {
	in.T.Helper()
	for _, e := range in.Events(in.Box) {
		if !e.Time.Before(since) && e.Stage == stage && e.Reason == name.ReasonLimit {
			lines++
			refusals += max(e.Count, 1)
		}
	}
	return lines, refusals
}

// One box holds its maximum number of tunnels. Each costs the gateway two descriptors, and other boxes are not
// affected.
func TestAttackBoxHoldsAllItsTunnels(t *testing.T) {
	t.Parallel()
	const most = 400
	w := harness.NewWorld(t, func(c *config.Config) { c.Limits.Connections = most })
	stop := bystander(w)
	in := w.Intrude(w.Create(map[string]any{"network_policy": harness.Custom("www.example.com")}))
	to := netip.AddrPortFrom(in.Resolve("www.example.com", "ip4"), 7)
	sockets, pipes := descriptors(w)
	since := time.Now()
	var held []net.Conn
	for range most {
		held = append(held, beginRequest(in, in.Dial(to), "\x00echo", true).Conn)
	}
	if c, err := in.Connect(to); err == nil {
		if answer, reset := harness.SendAndReadAll(c, "echo"); !reset {
			t.Errorf("one tunnel too many answers %q", answer)
		}
		c.Close()
	}
	in.Denied(since, policy.StageConn, name.ReasonLimit)
	var s, p int
	t.Cleanup(func() { t.Logf("%d sockets and %d pipes more than before", s-sockets, p-pipes) })
	w.UntilEvery(20*time.Millisecond, "idle tunnels hold two sockets each and no pipe", func() bool {
		s, p = descriptors(w)
		return s-sockets >= 2*most-60 && s-sockets <= 2*most+60 && p-pipes <= 64 // other descriptors are opened and closed
	})
	if n, _ := stop(); n < 4 {
		t.Errorf("the other box made %d requests", n)
	}
	for _, c := range held {
		c.Close()
	}
	w.Until("the sockets come back", func() bool {
		s, p = descriptors(w)
		return s-sockets < 60
	})
	w.NoInternalErrors()
}

// descriptors counts the gateway's open sockets and pipe ends.
func descriptors(w *harness.World) (sockets, pipes int) {
	w.T.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", w.Process.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, e := range entries {
		to, err := os.Readlink(dir + "/" + e.Name())
		switch {
		case err != nil: // already closed
		case strings.HasPrefix(to, "socket:"):
			sockets++
		case strings.HasPrefix(to, "pipe:"):
			pipes++
		}
	}
	return sockets, pipes
}
