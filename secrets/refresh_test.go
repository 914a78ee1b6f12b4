package secrets

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy"
)

// scriptedSecrets are secrets of one file source "s" with a refresh of 8 s, whose reading the test answers for.
func scriptedSecrets(t *testing.T, give func(context.Context) (string, error)) (*Secrets, *scripted) {
	t.Helper()
	s, _ := opened(t, nil)
	src := &scripted{calls: make(chan struct{}, 1000), give: give}
	s.counts = newCounts([]string{"s"})
	s.entries["s"] = &entry{name: "s", source: Source{File: "/scripted", Refresh: 8 * time.Second, Timeout: 2 * time.Second}, load: src.load, owner: s}
	return s, src
}

// A value is used until it expires, refreshed ahead from three quarters of its time, and never used after it.
func TestAValueIsNeverStale(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		value, failure := "one", error(nil)
		s, src := scriptedSecrets(t, func(context.Context) (string, error) { return value, failure })
		step := func(pass time.Duration, calls int) {
			t.Helper()
			time.Sleep(pass)
			synctest.Wait()
			if n := len(src.calls); n != calls {
				t.Fatalf("the source was asked %d times, want %d", n, calls)
			}
		}
		wants(t, s, "s", "one")
		value = "two"
		step(5*time.Second, 1)
		wants(t, s, "s", "one") // 5 s old
		step(time.Second, 1)
		wants(t, s, "s", "one") // 6 s old: refreshed ahead, and this call did not wait
		step(0, 2)
		wants(t, s, "s", "two")

		failure = errors.New("out of order")
		step(6*time.Second, 2)
		wants(t, s, "s", "two") // the refresh ahead fails
		step(0, 3)
		wants(t, s, "s", "two") // and the value is valid still
		step(500*time.Millisecond, 3)
		wants(t, s, "s", "two") // nor is the source pestered
		step(1400*time.Millisecond, 3)
		wants(t, s, "s", "two") // 7.9 s old
		step(100*time.Millisecond, 4)
		fails(t, s, "s", "file /scripted", "out of order") // 8 s old: over
		fails(t, s, "s", "out of order")
		step(0, 4)

		failure = nil
		step(900*time.Millisecond, 4)
		wants(t, s, "s", "two") // repaired: asked again after a second
		step(0, 5)
	})
}

// However many ask at once, the source is asked once.
func TestOneRefreshAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		s, src := scriptedSecrets(t, func(context.Context) (string, error) { <-open; return "v", nil })
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { wants(t, s, "s", "v") })
		}
		synctest.Wait()
		close(open)
		all.Wait()
		if n := len(src.calls); n != 1 {
			t.Errorf("the source was asked %d times", n)
		}
	})
}

// A source that never answers is given up after its timeout, is not asked a second time, and holds up no other.
func TestAHangingSourceHoldsNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer func() { close(hang); synctest.Wait() }()
		s, src := scriptedSecrets(t, func(context.Context) (string, error) { <-hang; return "late", nil }) // deaf to its context
		s.entries["other"] = &entry{name: "other", source: Source{Value: policy.NewSecret("v")}, owner: s,
			load: loader(Source{Value: policy.NewSecret("v")})}
		began := time.Now()
		var all sync.WaitGroup
		all.Go(func() { fails(t, s, "s", "does not answer") })
		synctest.Wait()
		wants(t, s, "other", "v")
		if time.Since(began) != 0 {
			t.Error("the other secret waited")
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Secret(impatient, "s"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("the caller's deadline gave %v after %v", err, time.Since(began))
		}
		all.Wait()
		if d := time.Since(began); d != 2*time.Second+killDelay {
			t.Errorf("given up after %v", d)
		}
		time.Sleep(time.Minute)
		began = time.Now()
		fails(t, s, "s", "does not answer")
		if time.Since(began) != 0 || len(src.calls) != 1 {
			t.Errorf("asked %d times; the last caller waited %v", len(src.calls), time.Since(began))
		}
	})
}

// A value that took longer to get than it is valid is handed to those who waited for it, and to nobody later.
func TestASlowSourceIsAskedForEachUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, src := scriptedSecrets(t, func(context.Context) (string, error) { time.Sleep(time.Second); return "v", nil })
		s.entries["s"].source.Refresh = 500 * time.Millisecond
		for range 3 {
			wants(t, s, "s", "v")
		}
		if len(src.calls) != 3 {
			t.Errorf("asked %d times", len(src.calls))
		}
	})
}

func TestAfterCloseThereIsNoSecret(t *testing.T) {
	t.Parallel()
	s, _ := single(t, Source{Value: policy.NewSecret(canary)})
	f, _ := single(t, Source{File: file(t, canary), Refresh: 100 * time.Millisecond})
	wants(t, f, "s", canary)
	f.Close()
	eventually(t, "no value", func() bool { _, err := f.Secret(t.Context(), "s"); return err != nil })
	fails(t, f, "s", "stopping")
	s.Close()
	s.Close()
	var none *Secrets
	if none.Has("s") {
		t.Error("nil has a secret")
	}
	fails(t, none, "s", "no secret of this name")
	none.Close()
}
