package meter

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/policy"
	"boxgate/store"
)

// kernel has counters set by the test.
type kernel struct {
	disk func(ctx context.Context) (Disk, error)

	mu    sync.Mutex
	boxes map[policy.BoxID]Reading // guarded by mu, like the fields below
	looks int
}

// setCounters sets the counters of a box.
func (k *kernel) setCounters(id policy.BoxID, r Reading) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.boxes[id] = r
}

// removeBox removes a box.
func (k *kernel) removeBox(id policy.BoxID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.boxes, id)
}

func (k *kernel) ids() (ids []policy.BoxID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.boxes {
		ids = append(ids, id)
	}
	return ids
}

func (k *kernel) Read(ids []policy.BoxID) (map[policy.BoxID]Reading, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := map[policy.BoxID]Reading{}
	for _, id := range ids {
		if r, ok := k.boxes[id]; ok {
			found[id] = r
		}
	}
	return found, nil
}

func (k *kernel) ReadLinks(ids []policy.BoxID) (map[policy.BoxID]Reading, error) {
	found, err := k.Read(ids)
	for id, r := range found {
		found[id] = Reading{LinkLife: r.LinkLife, In: r.In, Out: r.Out}
	}
	return found, err
}

func (k *kernel) Disk(ctx context.Context, _ policy.BoxID) (Disk, error) {
	k.mu.Lock()
	k.looks++
	k.mu.Unlock()
	if k.disk == nil {
		return Disk{Whole: true}, nil
	}
	return k.disk(ctx)
}

// fakeStore is a store that can fail.
type fakeStore struct {
	all  map[policy.BoxID]store.Usage
	fail error
}

func (m *fakeStore) All() (map[policy.BoxID]store.Usage, error) { return m.all, nil }

func (m *fakeStore) Save(changed map[policy.BoxID]store.Usage) error {
	if m.fail != nil {
		return m.fail
	}
	if m.all == nil {
		m.all = map[policy.BoxID]store.Usage{}
	}
	for id, u := range changed {
		m.all[id] = u
	}
	return nil
}

func open(t *testing.T, k *kernel, s *fakeStore) *Meter {
	t.Helper()
	m, err := Open(Config{Boxes: k.ids, Kernel: k, Store: s, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A total includes every counter's growth exactly once, whatever happens to the gateway and the counters.
func TestTotalsOutliveTheirCounters(t *testing.T) {
	t.Parallel()
	k, s := &kernel{boxes: map[policy.BoxID]Reading{"b": {}}}, &fakeStore{}
	m := open(t, k, s)
	var want time.Duration
	var bytes uint64
	set := func(life string, cpu time.Duration, in uint64) {
		k.boxes["b"] = Reading{GroupLife: life, CPU: cpu, LinkLife: "if" + life, In: in, Out: 2 * in}
	}
	check := func(when string) {
		t.Helper()
		m.Read("b")
		if u := m.Of("b"); u.CPU != want || u.In != bytes || u.Out != 2*bytes {
			t.Errorf("%s: %+v, not %v and %d bytes", when, u, want, bytes)
		}
	}
	want, bytes = 5, 100
	set("1", 5, 100)
	check("at first")
	check("read again")
	m.Save()
	want, bytes = 9, 150
	set("1", 9, 150)
	check("grown, and not stored")
	m = open(t, k, s) // killed
	check("after a kill, with counters that went on")
	m.Save()
	want, bytes = 9+2, 150+3
	set("2", 2, 3) // the box restarts
	check("with new counters")
	want, bytes = 9+2+20, 150+3+40
	set("3", 20, 40) // it restarts again, and has already used more than last time
	check("with newer counters")
	m.Save()
	m = open(t, k, s)
	k.boxes["b"] = Reading{} // stopped
	check("without counters")
	want, bytes = want+1, bytes+1
	set("3", 1, 1)
	check("with counters that say less")
}

// Usage that the store cannot save is still counted, and saved later.
func TestStoreThatFails(t *testing.T) {
	t.Parallel()
	k, s := &kernel{boxes: map[policy.BoxID]Reading{"b": {GroupLife: "1", CPU: 5}}}, &fakeStore{fail: errors.New("full")}
	m := open(t, k, s)
	m.Read("b")
	m.Save()
	if u := m.Of("b"); u.CPU != 5 || len(s.all) != 0 {
		t.Errorf("%+v, %v", u, s.all)
	}
	s.fail = nil
	m.Save()
	if s.all["b"].CPU.Total != 5 {
		t.Errorf("%v", s.all)
	}
	s.all = nil
	m.Save()
	if s.all != nil {
		t.Error("unchanged totals were stored again")
	}
}

func TestRunReadsAndForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, s := &kernel{boxes: map[policy.BoxID]Reading{"b": {GroupLife: "1", CPU: 1, PeakMemory: 10, OOMKills: 1}, "c": {GroupLife: "1", CPU: 7}}}, &fakeStore{}
		m := open(t, k, s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			m.Run(ctx)
			close(done)
		}()
		synctest.Wait()
		k.setCounters("b", Reading{GroupLife: "1", CPU: 3, PeakMemory: 8, OOMKills: 2})
		k.removeBox("c")
		time.Sleep(Interval)
		synctest.Wait()
		if u := m.Of("b"); u.CPU != 3 || u.PeakMemory != 10 || u.OOMKills != 2 || s.all["b"].CPU.Total != 3 {
			t.Errorf("%+v, stored %+v", u, s.all["b"])
		}
		if u := m.Of("c"); u != (Usage{}) {
			t.Errorf("a box that is gone: %+v", u)
		}
		k.setCounters("b", Reading{GroupLife: "1", CPU: 4})
		cancel()
		<-done
		if s.all["b"].CPU.Total != 4 {
			t.Errorf("at the end: %+v", s.all["b"])
		}
	})
}

// The files of a box are counted again only if it has run since, and the less often, the longer a count takes.
func TestFilesAreCountedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{boxes: map[policy.BoxID]Reading{"b": {GroupLife: "1", CPU: 1}}}
		k.disk = func(ctx context.Context) (Disk, error) {
			<-ctx.Done() // too many
			return Disk{Bytes: 5, Whole: true}, ctx.Err()
		}
		m := open(t, k, &fakeStore{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			m.Run(ctx)
			close(done)
		}()
		time.Sleep(diskMost + Interval)
		synctest.Wait() // timers due at the same time have fired
		if d := m.Of("b").Disk; d.Bytes != 5 || d.Whole || d.At.IsZero() {
			t.Errorf("%+v", d)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if k.looks != 1 {
			t.Errorf("the files of an idle box were counted %d times", k.looks)
		}
		k.setCounters("b", Reading{GroupLife: "1", CPU: 2})
		time.Sleep(diskShare*diskMost + time.Minute)
		synctest.Wait()
		if k.looks != 2 {
			t.Errorf("%d counts", k.looks)
		}
		cancel()
		<-done
	})
}

// The transfers of a box count from the beginning of a period, even if the gateway is killed, and restart with the next
// period, also for a box that has no interface then.
func TestTransfersOfAPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, s := &kernel{boxes: map[policy.BoxID]Reading{"b": {LinkLife: "1"}}}, &fakeStore{}
		again := func() *Meter {
			m, err := Open(Config{Period: time.Hour, Boxes: k.ids, Kernel: k, Store: s, Log: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		m := again()
		check := func(when string, want uint64) {
			t.Helper()
			all, err := m.Transferred("b")
			if err != nil || all["b"] != want {
				t.Errorf("%s: %v, %v; want %d", when, all, err, want)
			}
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		check("at first", 0)
		k.setCounters("b", Reading{LinkLife: "1", In: 3, Out: 4})
		check("in both directions", 7)
		m.Save()
		k.setCounters("b", Reading{LinkLife: "1", In: 5, Out: 4})
		m = again() // killed
		check("after a kill", 9)
		k.setCounters("b", Reading{LinkLife: "2", In: 1})
		time.Sleep(time.Hour - time.Nanosecond)
		check("with another interface", 10)
		m.Save()
		k.setCounters("b", Reading{})
		time.Sleep(time.Nanosecond)
		check("in the next period, without an interface", 0)
		k.setCounters("b", Reading{LinkLife: "3", Out: 2})
		check("in the next period", 2)
		m.Save()
		u := s.all["b"]
		u.Period.Number++ // as if the clock had been set back since
		s.all["b"] = u
		m = again()
		check("with a clock that was put back", 2)
		u.Period.Length++
		s.all["b"] = u
		m = again()
		check("with periods of another length", 0)
	})
}
