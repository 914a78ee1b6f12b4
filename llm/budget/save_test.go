package budget

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/llm"
	"boxgate/policy"
)

// TestAttackKillInTheMiddleOfARequest: a gateway that is killed has charged what its requests had reserved, once.
func TestAttackKillInTheMiddleOfARequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit("a", tokens(10_000, llm.PerDay))
	r.spend("a", 2000)
	r.reserve("a", 3000)
	r.restart()
	used := r.used("box a")
	if used < 5000 || used > 5000+10_000/headroomShare+1 {
		t.Errorf("charged %d after the kill, want 5000 and a headroom of at most %d", used, 10_000/headroomShare)
	}
	r.refused("a", call(5001))
	for range 3 {
		r.restart() // before anything was stored
		if again := r.used("box a"); again != used {
			t.Errorf("charged %d after another kill, want %d", again, used)
		}
	}
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if again := r.used("box a"); again != used || r.OfBox("a").Assumed.Tokens == 0 {
		t.Errorf("charged %d after a start and a kill, want %d", again, used)
	}
}

// TestKillAtAnyMoment compares what the store covers with what was let through, after each step of random requests.
func TestKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	r := newRig(t)
	r.limit("a", tokens(10_000_000, llm.PerTotal), llm.Limit{USD: 100 * llm.Dollar, Per: llm.PerDay})
	var let uint64 // charged and reserved by requests that left
	type request struct {
		llm.Reservation
		most uint64
	}
	var running []request
	for range 2000 {
		switch n := 4 + random.Uint64N(20_000); {
		case random.IntN(2) == 0:
			if held, err := r.Reserve("a", "", call(n)); err == nil {
				running, let = append(running, request{held, n}), let+n
			}
		case len(running) > 0:
			i := random.IntN(len(running))
			used := random.Uint64N(running[i].most)
			running[i].Settle(llm.Usage{Input: used, Requests: 1}, "m-1", true)
			let -= running[i].most - used
			running = append(running[:i], running[i+1:]...)
		default:
			if err := r.Save(); err != nil {
				t.Fatal(err)
			}
		}
		a := r.store.all["box a"]
		if covered := a.Total.Tokens + a.Ahead.Tokens; covered < let {
			t.Fatalf("the store covers %d tokens of %d that were let through", covered, let)
		}
	}
}

// TestMostRequestsLeaveWithoutAWrite: the store is ahead.
func TestMostRequestsLeaveWithoutAWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit("a", tokens(10_000_000, llm.PerTotal))
	for range 400 {
		r.reserve("a", 1000).Settle(llm.Usage{Input: 300, Requests: 1}, "m-1", true)
	}
	if r.store.writes > 40 {
		t.Errorf("400 requests made %d writes", r.store.writes)
	}
	free := newRig(t) // nothing to keep
	for range 400 {
		free.spend("a", 1000)
	}
	if free.store.writes != 0 {
		t.Errorf("400 requests without limits made %d writes", free.store.writes)
	}
}

// TestRequestsShareAWrite: requests that need the store at the same time wait for one write.
func TestRequestsShareAWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit("a", tokens(50_000, llm.PerTotal))
	r.saving.Lock() // a write in progress
	var requests sync.WaitGroup
	for range 50 {
		requests.Go(func() { r.reserve("a", 1000) })
	}
	for {
		r.mu.Lock()
		n := r.sequence
		r.mu.Unlock()
		if n == 50 {
			break
		}
	}
	r.saving.Unlock()
	requests.Wait()
	if r.store.writes != 1 {
		t.Errorf("50 requests made %d writes", r.store.writes)
	}
}

// TestAttackStoreThatCannotBeWritten: a request that the store does not cover does not leave, and holds nothing.
func TestAttackStoreThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit("a", tokens(10_000, llm.PerTotal))
	r.store.err = errors.New("no space")
	for range 20 {
		if got := r.refused("a", call(1000)); got.RetryAfter == 0 || strings.Contains(got.Message, "space") {
			t.Errorf("refusal: %+v", got)
		}
	}
	if a := r.accounts["box a"]; a.reserved != (Amount{}) || a.calls != 0 {
		t.Errorf("the refused requests hold %v", a.reserved)
	}
	r.store.err = nil
	r.spend("a", 10_000)
}

// TestAttackTwoProcesses: while a gateway is replaced, the old and the new process together keep the limit.
func TestAttackTwoProcesses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	limit := uint64(100_000)
	r.limit("a", tokens(limit, llm.PerTotal))
	r.spend("a", 10_000)
	running := r.reserve("a", 20_000)
	old := r.Book
	if err := old.Release(); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if got := r.used("box a"); got < 30_000 || got > 30_000+limit/headroomShare+1 {
		t.Errorf("the successor begins with %d", got)
	}
	let := uint64(10_000 + 20_000)
	for _, book := range []*Book{old, r.Book, old} {
		for _, n := range []uint64{20_000, 5000, 1000, 200, 100, 100, 100, 40, 4} {
			if _, err := book.Reserve("a", "", call(n)); err == nil {
				let += n
			}
		}
	}
	if let > limit {
		t.Errorf("the two processes let %d tokens through, of %d", let, limit)
	}
	writes := r.store.writes
	running.Settle(llm.Usage{Output: 1}, "m-1", true)
	if err := errors.Join(old.Release(), old.Close()); err != nil || r.store.writes != writes {
		t.Errorf("the predecessor wrote again: %v", err)
	}
	if err := old.Save(); !errors.Is(err, errReleased) {
		t.Errorf("Save of the predecessor: %v", err)
	}
}

// TestCloseGivesTheHeadroomBack: after an orderly end nothing is charged that was not used or reserved.
func TestCloseGivesTheHeadroomBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit("a", tokens(100_000, llm.PerTotal))
	r.spend("a", 10_000)
	r.reserve("a", 500)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.refused("a", call(4)) // nothing leaves after the end
	r.restart()
	if got := r.used("box a"); got != 10_500 {
		t.Errorf("charged %d", got)
	}
}

// TestRun stores changes within an interval, gives the headroom of idle accounts back, and stores once more at the end.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.Now = time.Now
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		r.limit("a", tokens(100_000, llm.PerTotal))
		r.spend("a", 1000)
		time.Sleep(Interval + time.Millisecond)
		synctest.Wait()
		a, writes := r.store.stored("box a")
		if a.Total.Tokens != 1000 || a.Ahead.Tokens == 0 {
			t.Errorf("after an interval: %+v", a)
		}
		time.Sleep(idleAfter + Interval)
		synctest.Wait()
		if a, now := r.store.stored("box a"); a.Ahead != (Amount{}) || now != writes+1 {
			t.Errorf("after a quiet minute: %+v, %d writes more", a, now-writes)
		}
		r.mu.Lock()
		r.accountLocked("box late")
		r.mu.Unlock()
		time.Sleep((pruneEvery + 1) * Interval)
		synctest.Wait()
		r.mu.Lock()
		late := r.accounts["box late"]
		r.mu.Unlock()
		if late != nil {
			t.Error("the account of a box that does not exist stays")
		}
		r.spend("b", 7)
		cancel()
		running.Wait()
		if a := r.store.all["box b"]; a.Total.Tokens != 7 {
			t.Errorf("after the end: %+v", a)
		}
	})
}

// TestAccountsOfRevokedKeysEnd drops the accounts of keys that are not needed any more.
func TestAccountsOfRevokedKeysEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.spend("a", 10)
	r.spend("c", 10)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	book, err := New(r.cfg, func(key string) bool { return key == "k" })
	if err != nil || book.accounts["key other"] != nil || book.accounts[keyK] == nil || len(r.store.all) != 4 {
		t.Errorf("%v: %d accounts, %d stored", err, len(book.accounts), len(r.store.all))
	}
	book.Forget(policy.BoxID("a"))
	if err := book.Save(); err != nil {
		t.Error(err)
	}
}

// TestAttackReservationDuringAWrite: a write that stores less than before covers no request that begins while it runs.
func TestAttackReservationDuringAWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit("a", tokens(100_000, llm.PerDay))
	r.reserve("a", 2000).Settle(llm.Usage{}, "m-1", true)
	r.reserve("a", 4).Settle(llm.Usage{}, "m-1", true)
	r.saving.Lock()
	r.mu.Lock()
	lower := r.changedLocked(true)
	r.mu.Unlock()
	before := r.store.writes
	r.saving.Unlock()
	r.reserve("a", 2000)
	if ahead := lower["box a"].Ahead.Tokens; ahead >= 2000 || r.store.writes == before {
		t.Errorf("a request for 2000 tokens left, with %d tokens ahead in a write that ran, after %d more writes", ahead, r.store.writes-before)
	}
}
