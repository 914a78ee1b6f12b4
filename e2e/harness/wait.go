package harness

import (
	"net/netip"
	"os"
	"time"

	"boxgate/internal/testnet"
)

// Patience is the timeout of tests for a required event. It bounds liveness, not speed: a passing test may take long
// while another program keeps both cores busy. GATEWAY_TEST_PATIENCE, a duration, shortens it: the test of a mutant
// waits for an event that never comes.
var Patience = patienceOr(2 * time.Minute)

func patienceOr(usual time.Duration) time.Duration {
	d, err := time.ParseDuration(os.Getenv("GATEWAY_TEST_PATIENCE"))
	if err != nil || d <= 0 {
		return usual
	}
	return min(d, usual)
}

// hurry is the timeout in a failed test, whose further waits may fail for the same reason.
const hurry = 3 * time.Second

// patience returns the test's timeout for a required event.
func (w *World) patience() time.Duration {
	if w.T.Failed() {
		w.failed.Store(true)
	}
	if w.failed.Load() {
		return hurry
	}
	return Patience
}

// Until waits for a condition that others bring about.
func (w *World) Until(what string, holds func() bool) {
	w.T.Helper()
	w.UntilEvery(time.Millisecond, what, holds)
}

// UntilEvery is [World.Until] for a condition that is expensive to check. Checks become less frequent the longer it
// waits, to leave the machine to the awaited work.
func (w *World) UntilEvery(pace time.Duration, what string, holds func() bool) {
	w.T.Helper()
	began, patience := time.Now(), w.patience()
	for !holds() {
		waited := time.Since(began)
		if waited > patience {
			w.failed.Store(true)
			w.T.Fatalf("did not happen: %s", what)
		}
		time.Sleep(max(pace, min(waited/10, 100*time.Millisecond)))
	}
}

// AwaitCounted returns when all packets that the gateway's host has sent so far are counted.
func (w *World) AwaitCounted() {
	w.T.Helper()
	mark := netip.MustParseAddr("198.51.100.250")
	seen := func() (n int) {
		for _, p := range w.Net.Packets(mark.String()) {
			n += p.Count
		}
		return n
	}
	before := seen()
	c, err := w.Net.Gateway().DialContext(w.T.Context(), "udp", netip.AddrPortFrom(mark, 9).String())
	if err != nil {
		w.T.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("mark")); err != nil {
		w.T.Fatal(err)
	}
	w.Until("the marker arrives", func() bool { return seen() > before })
}

// Untouched fails the test if any packet has reached one of the addresses.
func (w *World) Untouched(addrs ...netip.Addr) {
	w.T.Helper()
	w.AwaitCounted()
	for _, a := range addrs {
		for _, p := range w.Net.Packets(a.String()) {
			w.T.Errorf("%v received %+v", a, p)
		}
		w.NothingReached(a.String())
	}
}

// NothingReached fails the test if a host of the internet received anything.
func (w *World) NothingReached(host string) {
	w.T.Helper()
	if seen := w.Net.Received(host, testnet.Any); len(seen) != 0 {
		w.T.Errorf("%s received %d entries, the first: %+v", host, len(seen), seen[0])
	}
}
