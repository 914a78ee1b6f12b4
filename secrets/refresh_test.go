package secrets

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy/name"
)

// scriptedSecrets are secrets with one file source "s", refreshed after 8 s, whose reads the test implements.
func scriptedSecrets(t *testing.T, give func(context.Context) (string, error)) (*Secrets, *scripted) {
	t.Helper()
	s, _ := opened(t, nil)
	src := &scripted{calls: make(chan struct{}, 1000), give: give}
	s.counts = newCounts([]string{"s"})
	s.entries["s"] = &entry{name: "s", source: Source{File: "/scripted", Refresh: 8 * time.Second, Timeout: 2 * time.Second}, load: src.load, owner: s}
	return s, src
}

// A value is used until it expires, refreshed from three quarters of its time on, and never used after that.
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
		wants(t, s, "s", "one") // 6 s old: refreshed in the background, without waiting
		step(0, 2)
		wants(t, s, "s", "two")

		failure = errors.New("out of order")
		step(6*time.Second, 2)
		wants(t, s, "s", "two") // the background refresh fails
		step(0, 3)
		wants(t, s, "s", "two") // and the value is still valid
		step(500*time.Millisecond, 3)
		wants(t, s, "s", "two") // and the source is not read again so soon
		step(1400*time.Millisecond, 3)
		wants(t, s, "s", "two") // 7.9 s old
		step(100*time.Millisecond, 4)
		fails(t, s, "s", "file /scripted", "out of order") // 8 s old: expired
		fails(t, s, "s", "out of order")
		step(0, 4)

		failure = nil
		step(900*time.Millisecond, 4)
		wants(t, s, "s", "two") // repaired: read again after a second
		step(0, 5)
	})
}

// Any number of concurrent calls read the source once.
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

// A source that hangs is abandoned after its timeout, is not read a second time, and does not delay others.
func TestAHangingSourceHoldsNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer func() { close(hang); synctest.Wait() }()
		s, src := scriptedSecrets(t, func(context.Context) (string, error) { <-hang; return "late", nil }) // ignores its context
		s.entries["other"] = &entry{name: "other", source: Source{Value: name.NewSecret("v")}, owner: s,
			load: s.loader("other", Source{Value: name.NewSecret("v")})}
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

// A value that took longer to read than it is valid is returned only to the callers that waited for it.
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
	s, _ := single(t, Source{Value: name.NewSecret(canary)})
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
