package usage

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/policy"
)

// table returns a table whose boxes have the given memory, and a function that returns the recorded refusals.
func table(total, box int64) (*Table, func() []audit.Event) {
	var mu sync.Mutex
	var got []audit.Event
	t := New(Config{Memory: memory.New(total, box), Arrivals: 10, Requests: 20, Record: func(e audit.Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, e)
	}})
	return t, func() []audit.Event {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

// TestEachBoxHasAUsage: usage is kept for each box and dropped with it; pending refusals are recorded then.
func TestEachBoxHasAUsage(t *testing.T) {
	t.Parallel()
	table, recorded := table(1<<30, 1<<30)
	one, two := &policy.Box{ID: "one"}, &policy.Box{ID: "two"}
	if table.Has("one") || table.Find("one") != nil {
		t.Error("a box that has used nothing is known")
	}
	of := table.Of(one)
	if of != table.Of(one) || of != table.Find("one") || of == table.Of(two) || of == table.Of(nil) || !table.Has("one") {
		t.Error("usages are mixed up")
	}
	for range 3 {
		of.Refusals.Add(audit.Event{Box: "one"})
		table.Of(nil).Excess.Add(audit.Event{})
	}
	table.Forget("one")
	if table.Has("one") || table.Of(one) == of {
		t.Error("a box is not forgotten")
	}
	before := len(recorded())
	if sum := count(recorded(), "one"); sum != 3 {
		t.Errorf("%d of 3 refusals are recorded", sum)
	}
	table.Flush()
	if sum := count(recorded(), ""); sum != 3 || len(recorded()) <= before {
		t.Errorf("without a box, %d of 3 refusals are recorded", sum)
	}
}

func count(events []audit.Event, of policy.BoxID) (sum uint64) {
	for _, e := range events {
		if e.Box == of {
			sum += max(e.Count, 1)
		}
	}
	return sum
}

// TestLimitsOfOneBox: a box's own limits take precedence over the common ones while they are set.
func TestLimitsOfOneBox(t *testing.T) {
	t.Parallel()
	table, _ := table(1<<30, 1<<30)
	box := &policy.Box{ID: "one"}
	of := table.Of(box)
	if got := of.Limit(policy.LimitInterceptions, 7); got != 7 {
		t.Errorf("without its own limit, the box's limit is %d", got)
	}
	own := policy.Limits{}
	own[policy.LimitInterceptions] = 2
	box.Limits.Store(own)
	if got := of.Limit(policy.LimitInterceptions, 7); got != 2 {
		t.Errorf("with its own limit of 2, the box's limit is %d", got)
	}
}

// TestInterceptionsAreCountedAndCharged: they are charged less while idle, and not at all after they have ended.
func TestInterceptionsAreCountedAndCharged(t *testing.T) {
	t.Parallel()
	table, _ := table(1<<30, 3*tlsCost*8/7+8) // an eighth is left for smaller things
	of := table.Of(&policy.Box{ID: "one"})
	first, second := of.Intercept(2, 0), of.Intercept(2, 0)
	if first == nil || second == nil || of.Interceptions.Load() != 2 {
		t.Fatal("two of two were refused")
	}
	if of.Intercept(2, 0) != nil || of.Interceptions.Load() != 2 || of.Memory.InUse() != 2*tlsCost {
		t.Errorf("a third with a limit of two: %d, and %d bytes", of.Interceptions.Load(), of.Memory.InUse())
	}
	if of.Intercept(9, usualHello+tlsCost) != nil || of.Memory.InUse() != 2*tlsCost {
		t.Errorf("beyond the memory: %d bytes", of.Memory.InUse())
	}
	first.Established(2 << 10)
	first.Rest(3 << 10)
	idle := of.Memory.InUse() - tlsCost
	if idle >= tlsCost/4 || idle < tlsIdle {
		t.Errorf("an idle one is charged with %d bytes", idle)
	}
	first.Rest(3 << 10) // counts once
	if of.Memory.InUse() != tlsCost+idle {
		t.Error("it released memory twice")
	}
	var third *Interception
	if third = of.Intercept(9, 0); third == nil {
		t.Fatal("memory released by an idle connection is not available to others")
	}
	if fourth := of.Intercept(9, 0); fourth != nil {
		t.Fatal("a fourth is accepted")
	} else if !first.Wake() {
		t.Error("it may not read although memory is available")
	}
	first.Rest(3 << 10)
	hog := memory.Claim{}
	hog.Open(of.Memory, memory.Buffers)
	for hog.Grow(1 << 10) {
	}
	if first.Wake() {
		t.Error("it may read although memory is short")
	}
	hog.Close()
	for _, i := range []*Interception{first, second, third, nil} {
		i.End()
	}
	if of.Interceptions.Load() != 0 || of.Memory.InUse() != 0 {
		t.Errorf("at the end: %d, and %d bytes", of.Interceptions.Load(), of.Memory.InUse())
	}
	var none *Interception
	none.Rest(1)
	if !none.Wake() {
		t.Error("a connection that is not intercepted may not read")
	}
}

func TestCoalescedTellsEachOneASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []audit.Event
		thin := Coalescer{Record: func(e audit.Event) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, e)
		}}
		told := func(want ...uint64) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			var counts []uint64
			for _, e := range got {
				counts = append(counts, max(e.Count, 1))
			}
			if len(counts) != len(want) {
				t.Fatalf("recorded %v, want %v", counts, want)
			}
			for i := range want {
				if counts[i] != want[i] {
					t.Fatalf("recorded %v, want %v", counts, want)
				}
			}
		}
		for i := range 500 {
			thin.Add(audit.Event{Status: i})
		}
		told(1)
		time.Sleep(coalesceInterval)
		told(1, 499)
		if got[1].Status != 499 {
			t.Errorf("the event is not the latest: %+v", got[1])
		}
		thin.Add(audit.Event{})
		told(1, 499)
		time.Sleep(coalesceInterval)
		told(1, 499, 1)
		time.Sleep(2 * coalesceInterval) // no events, so no record
		told(1, 499, 1)
		thin.Add(audit.Event{})
		thin.Add(audit.Event{})
		thin.Flush()
		told(1, 499, 1, 1, 1)
	})
}

// Users that take all they can get leave some for later users with few, and the total is never exceeded.
func TestSharesLeaveRoomForTheOthers(t *testing.T) {
	t.Parallel()
	for _, total := range []int{8, 100, 4096} {
		held := map[int]int{}
		open := 0
		fill := func(who, want int) {
			for range want {
				if !Room(held[who], open, total, len(held)) {
					return
				}
				held[who]++
				open++
			}
		}
		fill(0, 10*total) // two that take all they get
		fill(1, 10*total)
		for who := 2; who < 2+total/16; who++ {
			if fill(who, 1); held[who] != 1 {
				t.Errorf("of %d, two boxes got %d and %d, and box %d none", total, held[0], held[1], who)
			}
		}
		if open > total {
			t.Errorf("%d of %d are in use", open, total)
		}
		if held[0] < total/2 {
			t.Errorf("of %d, the first box got %d", total, held[0])
		}
	}
	if !Room(1<<30, 1<<30, 0, 1) {
		t.Error("a limit applies although none is set")
	}
}
