package dns

import (
	"net"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy/name"
)

// TestFloodIsCountedAndNotAnswered checks that over the limit, as many queries are refused with an answer as are
// served, and that the rest are only counted.
func TestFloodIsCountedAndNotAnswered(t *testing.T) {
	t.Parallel()
	const burst, flood = 5, 300
	l := newLive(t, domains("a.example.com"), newZone(t), Limits{QueriesPerSecond: 0.001, Burst: burst})
	l.ask(t, "udp", "b.example.com", mdns.TypeA) // afterwards the server is up and its receive buffer enlarged
	const served = burst - 1
	conn, err := net.Dial("udp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wire, err := newQuery("b.example.com", mdns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	for range flood {
		if _, err := conn.Write(wire); err != nil {
			t.Fatal(err)
		}
	}
	over := func() (n uint64) {
		for _, ev := range l.events.all() {
			if ev.Reason == name.ReasonLimit {
				n += ev.Count
			}
		}
		return n
	}
	for deadline := time.Now().Add(time.Minute); over() < flood-served; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d queries are accounted for", over(), flood-served)
		}
	}
	// Exactly the due answers arrive.
	buf := make([]byte, 512)
	for n := 1; ; n++ {
		wait := time.Minute
		if n > served+burst {
			wait = 20 * time.Millisecond
		}
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(buf); err != nil {
			if n <= served+burst {
				t.Errorf("answer %d of %d: %v", n, served+burst, err)
			}
			break
		}
		if n > served+burst {
			t.Errorf("answer %d, where %d are due", n, served+burst)
		}
	}
	for deadline := time.Now().Add(time.Minute); l.usages.usageOf(l.box).inFlight.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("queries are still counted as under way")
		}
	}
}
