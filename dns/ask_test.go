package dns

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
)

// patient asks over UDP with a long timeout for busy machines.
func (l *live) patient(t *testing.T, name string, qtype uint16) *mdns.Msg {
	t.Helper()
	m, _, err := (&mdns.Client{Timeout: time.Minute}).Exchange(newQuery(name, qtype), l.addr)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestReaderAsksOnceForAllWaiting queries of a box, in any spelling of the name.
func TestReaderAsksOnceForAllWaiting(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	z.before = func() { asked <- struct{}{}; <-release }
	l := newLive(t, domains("a.example.com"), z)
	conn, err := net.Dial("udp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const queries = 20
	for i := range queries {
		q := newQuery([]string{"a.example.com", "A.Example.com"}[i%2], mdns.TypeA)
		q.Id = uint16(i)
		wire, _ := q.Pack()
		if _, err := conn.Write(wire); err != nil {
			t.Fatal(err)
		}
	}
	<-asked
	for l.usages.usageOf(l.box).inFlight.Load() < queries {
		time.Sleep(time.Millisecond)
	}
	close(release)
	ids := map[uint16]bool{}
	buf := make([]byte, udpSize)
	for range queries {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		m := unpack(t, buf[:n])
		wantAddresses(t, m, goodV4)
		if want := []string{"a.example.com.", "A.Example.com."}[m.Id%2]; m.Question[0].Name != want || m.Answer[0].Header().Name != want {
			t.Errorf("asked for %s, got\n%v", want, m)
		}
		ids[m.Id] = true
	}
	if len(ids) != queries {
		t.Errorf("%d of %d queries were answered", len(ids), queries)
	}
	for l.usages.usageOf(l.box).lookups.Load() != 0 || l.usages.usageOf(l.box).inFlight.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	if n := len(l.cache.slots); n != 0 {
		t.Errorf("%d lookups are still counted", n)
	}
}

// TestPolicyTightenedWhileUpstreamIsAsked checks that the policy at the time of the answer decides.
func TestPolicyTightenedWhileUpstreamIsAsked(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	z.before = func() { asked <- struct{}{}; <-release }
	l := newLive(t, domains("a.example.com"), z)
	go func() {
		<-asked
		l.box.Policy.Store(compile(t, domains("b.example.com"), 2))
		close(release)
	}()
	wantBlocked(t, l.patient(t, "a.example.com", mdns.TypeA), sinkV4)
	if l.Granted("box1", mustName(t, "a.example.com"), addr(goodV4)) {
		t.Error("an address was granted")
	}
}

// TestReaderLeavesTheRestToTheGeneralWay covers answers that need several questions, or that the box may not receive.
func TestReaderLeavesTheRestToTheGeneralWay(t *testing.T) {
	t.Parallel()
	lines := []string{"c.example.com. 60 IN CNAME x.cdn.net.", "x.cdn.net. 60 IN A " + goodV4, "d.example.com. 60 IN CNAME x.evil.org.",
		"x.evil.org. 60 IN A " + goodV4, "r.example.com. 60 IN A 10.0.0.1", "m.example.com. 60 IN A 10.0.0.1", "m.example.com. 60 IN A " + goodV4,
		`h.example.com. 60 IN HTTPS 1 . alpn="h3,h2" ipv4hint="127.0.0.1" ech="AEX+DQ=="`}
	spec := domains("*.example.com")
	spec.DeniedDomains = []string{"*.evil.org"}
	l := newLive(t, spec, newZone(t, lines...))
	wantAddresses(t, l.patient(t, "c.example.com", mdns.TypeA), goodV4)
	wantBlocked(t, l.patient(t, "d.example.com", mdns.TypeA))
	wantBlocked(t, l.patient(t, "r.example.com", mdns.TypeA))
	wantAddresses(t, l.patient(t, "m.example.com", mdns.TypeA), goodV4)
	if m := l.patient(t, "none.example.com", mdns.TypeA); m.Rcode != mdns.RcodeNameError {
		t.Errorf("got\n%v", m)
	}
	if m := l.patient(t, "h.example.com", mdns.TypeHTTPS); len(m.Answer) != 1 || strings.Contains(m.Answer[0].String(), "hint") ||
		strings.Contains(m.Answer[0].String(), "ech") || strings.Contains(m.Answer[0].String(), "h3") {
		t.Errorf("got\n%v", m)
	}
}

// TestReaderFailsOver checks that the reader uses the next upstream, and skips the one that does not answer.
func TestReaderFailsOver(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	up := newRealUpstream(t, newZone(t, "a.example.com. 60 IN A "+goodV4, "b.example.com. 60 IN A "+goodV4), nil)
	l := newLiveBehind(t, domains("*.example.com"), up, []string{silent.LocalAddr().String()})
	wantAddresses(t, l.patient(t, "a.example.com", mdns.TypeA), goodV4)
	if l.up.upstreams[0].heldUntil.Load() == 0 {
		t.Error("the silent server is asked first again")
	}
	wantAddresses(t, l.patient(t, "b.example.com", mdns.TypeA), goodV4)
}

// TestReaderAndLookupAskOnce checks that the proxy's lookups wait for questions that a reader has already asked.
func TestReaderAndLookupAskOnce(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4, "a.example.com. 60 IN AAAA "+goodV6)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	z.before = func() { asked <- struct{}{}; <-release }
	l := newLive(t, domains("a.example.com"), z)
	var wait sync.WaitGroup
	wait.Go(func() {
		if m, _, err := (&mdns.Client{Timeout: time.Minute}).Exchange(newQuery("a.example.com", mdns.TypeA), l.addr); err != nil || len(m.Answer) != 1 {
			t.Errorf("got %v, %v", m, err)
		}
	})
	<-asked
	wait.Go(func() {
		if got, err := l.LookupBoth(t.Context(), l.box, mustName(t, "a.example.com")); err != nil || fmt.Sprint(got) != fmt.Sprint([]string{goodV4, goodV6}) {
			t.Errorf("got %v, %v", got, err)
		}
	})
	<-asked // for AAAA
	close(release)
	wait.Wait()
	var types []uint16
	for _, q := range l.upstream.queries() {
		types = append(types, q.msg.Question[0].Qtype)
	}
	if !slices.Equal(types, []uint16{mdns.TypeA, mdns.TypeAAAA}) {
		t.Errorf("upstream was asked for %v", types)
	}
}

// TestDirectUpstream checks which upstreams are not asked from a reader's sockets.
func TestDirectUpstream(t *testing.T) {
	t.Parallel()
	for in, direct := range map[string]bool{"192.0.2.1": true, "[2001:db8::1]:54": true, "tls://192.0.2.1": false, "localhost": false, "fe80::1%lo": false} {
		if u, err := newUpstream(in, nil, nil); err != nil || u.directAddr.IsValid() != direct {
			t.Errorf("%s: %v, %v", in, u.directAddr, err)
		}
	}
	dialled := newTestForwarder(t, new(net.Dialer).DialContext, nil, "192.0.2.1")
	held := newTestForwarder(t, nil, nil, "192.0.2.1", "192.0.2.2")
	held.upstreams[0].markFailed(time.Now())
	if dialled.directUpstream() != nil || held.directUpstream() != held.upstreams[1] {
		t.Error("the upstream to ask is another")
	}
}
