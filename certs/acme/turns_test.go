package acme

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/certs/acme/pebbletest"
)

// ownerOf returns the text before the first dash of a name as its owner.
func ownerOf(host string) string {
	owner, _, _ := strings.Cut(host, "-")
	return owner
}

// TestAttackTarpits: a tenant visits 320 domains whose validation takes an issuer as long as possible. The first
// visitors of another tenant's domain, and of a URL below the gateway's domain, wait for none of these.
func TestAttackTarpits(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.tarpit("tarpit.example")
	p := f.pebble(pebbletest.Options{})
	cfg := f.config(issuer(t, p))
	cfg.Owner = ownerOf
	cfg.Wait = 5 * time.Second
	m := f.use(cfg)
	for i := range 320 {
		host := fmt.Sprintf("evil-%d.tarpit.example", i)
		f.served.Store(host, true)
		if _, err := m.request(host); err != nil && !errors.Is(err, errBusy) {
			t.Fatal(err)
		}
	}
	if taken, waiting := m.others.counts(); taken != maxConcurrent/2 || waiting != maxWaiting {
		t.Errorf("of 320 attempts of one owner %d have a place and %d wait, want %d and %d", taken, waiting, maxConcurrent/2, maxWaiting)
	}
	began := time.Now()
	for _, host := range []string{"victim-1.example.org", "victim-2." + cfg.Domain.String()} {
		f.served.Store(host, true)
		for {
			if _, _, err := f.shown(host); err == nil {
				break
			}
			if _, waiting := m.others.counts(); waiting < maxWaiting/2 || time.Since(began) > time.Minute {
				t.Fatalf("%s has no certificate after %v, when %d attempts of the tenant had failed and %d still waited", host, time.Since(began), m.Failing(), waiting)
			}
			time.Sleep(20 * time.Millisecond)
		}
		f.mustShow(host, p)
	}
}

// TestTurns checks that one owner gets half of the places, the next half of the rest, and that the first owner without
// a place gets the next released one, before any attempt that waits longer.
func TestTurns(t *testing.T) {
	t.Parallel()
	turns := newTurns(16)
	evil := map[string][]*turn{}
	for _, owner := range []string{"a", "b", "c", "d", "e"} {
		for range maxWaiting / 2 {
			w, err := turns.enqueue(owner)
			if err != nil {
				t.Fatal(err)
			}
			evil[owner] = append(evil[owner], w)
		}
	}
	have := func(line []*turn) (n int) {
		for _, w := range line {
			select {
			case <-w.ready:
				n++
			default:
			}
		}
		return n
	}
	for owner, want := range map[string]int{"a": 8, "b": 4, "c": 2, "d": 1, "e": 1} {
		if n := have(evil[owner]); n != want {
			t.Errorf("%s has %d places, want %d", owner, n, want)
		}
	}
	victim, err := turns.enqueue("victim")
	if err != nil || have([]*turn{victim}) != 0 {
		t.Fatalf("a place beyond the last, %v", err)
	}
	evil["a"][0].release()
	if have([]*turn{victim}) != 1 {
		t.Error("a place was given back, and went to one who has others")
	}
	for range maxWaiting {
		_, err = turns.enqueue("f")
	}
	if _, over := turns.enqueue("f"); err != nil || !errors.Is(over, errBusy) {
		t.Errorf("%v, then beyond the queue %v", err, over)
	}
}

// TestOrdersAreRefused checks that refused orders reach no issuer, and that stored certificates are still served and
// renewed.
func TestOrdersAreRefused(t *testing.T) {
	t.Parallel()
	f := newField(t)
	front := newFront(t, f.pebble(pebbletest.Options{}))
	var refuse atomic.Bool
	cfg := f.config(front.Issuer)
	cfg.Order = func(host string) error {
		if refuse.Load() {
			return errors.New("as many as may be in an hour: " + host)
		}
		return nil
	}
	var failed atomic.Int64
	cfg.Failed = func(string) { failed.Add(1) }
	for _, host := range []string{"app.example.org", "more.example.org", "lost.example.org"} {
		f.served.Store(host, true)
	}
	m := f.use(cfg)
	f.visit("app.example.org")
	f.names.lost.Store("lost.example.org", true)
	before := failed.Load()
	if _, _, err := f.shown("lost.example.org"); err == nil || failed.Load() != before+1 {
		t.Errorf("%d failures are counted, %v", failed.Load()-before, err)
	}
	refuse.Store(true)
	orders := front.orders.Load()
	for range 5 {
		if _, _, err := f.shown("more.example.org"); err == nil {
			t.Error("a certificate beyond what may be ordered")
		}
	}
	if n := front.orders.Load(); n != orders {
		t.Errorf("%d orders that were refused", n-orders)
	}
	m.Close()
	f.use(cfg)
	f.visit("app.example.org")
	if err := m.hostConfig.RenewCertSync(t.Context(), "app.example.org", true); err != nil {
		t.Errorf("a renewal is refused: %v", err)
	}
}
