package harness

import (
	"net/netip"
	"time"

	"boxgate/internal/testnet"
)

// Patience is how long tests wait for what must happen. It bounds liveness, not speed: with both cores kept busy by another
// program a test that passes may take long.
const Patience = 30 * time.Second

// hurry is how long a test waits that has failed already: all that follows may fail for the same reason.
const hurry = 3 * time.Second

// patience is how long the test waits for what must happen.
func (w *World) patience() time.Duration {
	if w.T.Failed() {
		w.failed.Store(true)
	}
	if w.failed.Load() {
		return hurry
	}
	return Patience
}

// Until waits for a condition that something else brings about.
func (w *World) Until(what string, holds func() bool) {
	w.T.Helper()
	w.UntilEvery(time.Millisecond, what, holds)
}

// UntilEvery is [World.Until] for a condition that costs something to look at. The longer it has been waited for, the less
// often it is looked at, so that what is waited for has the machine.
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

// Settle returns when whatever the gateway's host has sent out so far is counted.
func (w *World) Settle() {
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
	w.Settle()
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
		w.T.Errorf("%s received %d things, the first: %+v", host, len(seen), seen[0])
	}
}
