package quota

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func key(name string) Holder { return Holder{Type: APIKey, ID: "key_" + name, Name: name} }

var operator = Holder{Type: APIKey, ID: "operator", Operator: true}

func limits(k Kind, n int64) (l Limits) { l[k] = n; return l }

// take takes one of a kind until the test ends.
func take(t *testing.T, b *Book, h Holder, k Kind) error {
	t.Helper()
	release, err := b.Acquire(h, k, 1)
	if err == nil {
		t.Cleanup(release)
	}
	return err
}

func TestAHolderHasNoMoreThanItsQuota(t *testing.T) {
	t.Parallel()
	b := New(Config{Defaults: limits(Commands, 2)})
	release, err := b.Acquire(key("ci"), Commands, 2)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Acquire(key("ci"), Commands, 1)
	const want = "API key ci has 2 commands under way, as many as it may (quotas.commands); wait for one to end, or have the operator raise it"
	if refused, ok := errors.AsType[*Error](err); !ok || refused.Kind != Commands || refused.After <= 0 || err.Error() != want {
		t.Errorf("a third: %v", err)
	}
	if err := take(t, b, key("other"), Commands); err != nil {
		t.Errorf("another holder: %v", err)
	}
	for range 5 {
		if err := take(t, b, operator, Commands); err != nil {
			t.Errorf("the operator: %v", err)
		}
	}
	release()
	release()
	if use := b.Use(key("ci"))[Commands]; use != (Use{0, 2}) {
		t.Errorf("after a release: %+v", use)
	}
	if err := take(t, b, key("ci"), Commands); err != nil {
		t.Errorf("after a release: %v", err)
	}
}

func TestAHolderWithLimitsOfItsOwn(t *testing.T) {
	t.Parallel()
	b := New(Config{Defaults: limits(Commands, 1)})
	b.Set(key("ci"), limits(Commands, 3))
	for range 3 {
		if err := take(t, b, key("ci"), Commands); err != nil {
			t.Fatal(err)
		}
	}
	if err := take(t, b, key("ci"), Commands); err == nil || !strings.Contains(err.Error(), "has 3 commands") {
		t.Errorf("a fourth: %v", err)
	}
	b.Set(key("ci"), Limits{})
	if limit := b.Limit(key("ci"), Commands); limit != 1 {
		t.Errorf("limit %d", limit)
	}
	if err := take(t, b, key("ci"), Commands); err == nil || !strings.Contains(err.Error(), "has 3 commands under way, as many as it may") {
		t.Errorf("above a lower limit: %v", err)
	}
}

// Holders that take all they can leave the operator its quarter, a single holder leaves others half, and a late one still
// gets something.
func TestSharesOfATotal(t *testing.T) {
	t.Parallel()
	b := New(Config{Totals: limits(Requests, 4000)})
	hoard := func(h Holder) (n int) {
		for ; take(t, b, h, Requests) == nil; n++ {
		}
		return n
	}
	if n := hoard(key("first")); n < 1000 || n > 1500 {
		t.Errorf("the first took %d of 3000", n)
	}
	for i := range 20 {
		hoard(key(fmt.Sprint(i)))
	}
	for i := range 10 {
		if n := hoard(key(fmt.Sprint("late", i))); n < 1 {
			t.Errorf("holder %d got nothing", i)
		}
	}
	_, err := b.Acquire(key("first"), Requests, 1)
	if err == nil || !strings.Contains(err.Error(), "all keys together may have 3000 requests under way") {
		t.Errorf("more for the first: %v", err)
	}
	for range 2000 {
		if err := take(t, b, operator, Requests); err != nil {
			t.Fatalf("the operator: %v", err)
		}
	}
	if use, refused := b.Shared(Requests); use.Limit != 3000 || use.Used > 3000 || use.Used < 2800 || refused < 32 {
		t.Errorf("%+v, %d refused", use, refused)
	}
}

// The operator's request bodies fit in the memory of the process, beside those of others.
func TestTheOperatorHasAllOfTheMemory(t *testing.T) {
	t.Parallel()
	b := New(Config{Totals: limits(Memory, 400)})
	if _, err := b.Acquire(key("ci"), Memory, 150); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(key("ci"), Memory, 1); err == nil {
		t.Error("a key has more than half of the share")
	}
	if _, err := b.Acquire(operator, Memory, 250); err != nil {
		t.Error(err)
	}
	if _, err := b.Acquire(operator, Memory, 1); err == nil {
		t.Error("more than the total is taken")
	}
}

func TestReserveCountsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	b := New(Config{Defaults: limits(Boxes, 3)})
	exist := int64(1)
	count := func() int64 { return exist }
	b.Count(Boxes, func(Holder) int64 { return exist })
	first, err := b.Reserve(key("ci"), Boxes, 1, count)
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.Reserve(key("ci"), Boxes, 1, count)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reserve(key("ci"), Boxes, 1, count); err == nil || err.Error() != "API key ci has 3 boxes, as many as it may (quotas.boxes); delete one, or have the operator raise it" {
		t.Errorf("a fourth, while two are made: %v", err)
	}
	exist++
	first()
	second() // it failed
	if _, err := b.Reserve(key("ci"), Boxes, 1, count); err != nil {
		t.Error(err)
	}
	if use := b.Use(key("ci"))[Boxes]; use != (Use{2, 3}) {
		t.Errorf("%+v", use)
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	b := New(Config{Defaults: limits(Certificates, 10), Totals: limits(Certificates, 20), Now: func() time.Time { return now }})
	ask := func(h Holder, n int) (allowed int, last error) {
		for range n {
			if err := b.Rate(h, Certificates); err != nil {
				last = err
			} else {
				allowed++
			}
		}
		return allowed, last
	}
	n, err := ask(key("ci"), 50)
	refused, ok := errors.AsType[*Error](err)
	if n != 10 || !ok || refused.Shared || refused.After < 5*time.Minute || refused.After > 6*time.Minute {
		t.Errorf("%d, then %v (%+v)", n, err, refused)
	}
	if use := b.Use(key("ci"))[Certificates]; use != (Use{10, 10}) {
		t.Errorf("%+v", use)
	}
	if n, err := ask(key("other"), 50); n != 5 || err == nil || !strings.Contains(err.Error(), "all keys together may have 15") {
		t.Errorf("another had %d, then %v", n, err)
	}
	if n, _ := ask(operator, 50); n != 50 {
		t.Errorf("the operator had %d", n)
	}
	now = now.Add(time.Hour)
	if n, _ := ask(key("ci"), 50); n != 10 {
		t.Errorf("an hour later %d", n)
	}
}

// Holders are forgotten when they have no usage and their rates have recovered.
func TestHoldersAreForgotten(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	b := New(Config{Defaults: limits(Certificates, 1), Now: func() time.Time { return now }})
	for i := range 1000 {
		h := key(fmt.Sprint(i))
		release, err := b.Acquire(h, Requests, 3)
		if err != nil {
			t.Fatal(err)
		}
		release()
		if len(b.accounts) != 0 {
			t.Fatal("a holder without usage is in the book")
		}
	}
	for i := range 1000 {
		_ = b.Rate(key(fmt.Sprint(i)), Certificates)
	}
	if len(b.accounts) != 1000 {
		t.Errorf("%d holders", len(b.accounts))
	}
	now = now.Add(time.Hour)
	for range 1000 {
		_ = b.Rate(key("x"), Certificates)
	}
	if len(b.accounts) > 20 {
		t.Errorf("%d holders an hour later", len(b.accounts))
	}
}

// The usage of a request lasts as long as the work that it has started, and no longer.
func TestScope(t *testing.T) {
	t.Parallel()
	b := New(Config{Defaults: limits(Memory, 100)})
	h := key("ci")
	used := func(k Kind) int64 { return b.Use(h)[k].Used }
	s, end := b.Open(h)
	ctx := WithScope(context.Background(), s)
	if err := ScopeOf(ctx).Acquire(Memory, 60); err != nil {
		t.Fatal(err)
	}
	if err := ScopeOf(ctx).Acquire(Memory, 60); err == nil || used(Memory) != 60 {
		t.Errorf("%v, %d used", err, used(Memory))
	}
	s.Release(Memory, 10)
	work := s.Extend()
	end()
	end()
	if used(Memory) != 50 {
		t.Errorf("%d used while the work continues", used(Memory))
	}
	work()
	work()
	if used(Memory) != 0 || len(b.accounts) != 0 {
		t.Errorf("%d used when it has ended", used(Memory))
	}
	late := s.Extend() // the work calls Extend after its request has ended
	if used(Memory) != 50 {
		t.Errorf("%d used by work that began late", used(Memory))
	}
	late()
	s.Release(Memory, 50)
	if err := s.Acquire(Memory, 10); err != nil || used(Memory) != 0 || len(b.accounts) != 0 {
		t.Errorf("%v, %d used by a scope that has ended", err, used(Memory))
	}
	none := ScopeOf(context.Background())
	if none.Acquire(Memory, 1000) != nil || none.Holder() != (Holder{}) {
		t.Error("a request without a scope is bounded")
	}
	none.Extend()()
}

// Holders returns the holders with usage, and those that the caller adds, each once, the one closest to a limit first.
func TestHoldersThatHaveMost(t *testing.T) {
	t.Parallel()
	b := New(Config{Defaults: limits(Commands, 4).WithDefaults(limits(Boxes, 10))})
	b.Count(Boxes, func(h Holder) int64 { return map[string]int64{"key_many": 9, "key_few": 1}[h.ID] })
	for range 2 {
		if err := take(t, b, key("busy"), Commands); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, h := range b.Holders(APIKey, 3, key("few"), key("many"), key("busy"), key("none")) {
		names = append(names, h.Holder.Name)
	}
	if strings.Join(names, " ") != "many busy few" {
		t.Errorf("%v", names)
	}
}

func TestABookIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	b := New(Config{Defaults: limits(Commands, 10), Totals: limits(Commands, 100)})
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			h := key(fmt.Sprint(i % 8))
			for range 500 {
				s, end := b.Open(h)
				if s.Acquire(Commands, 1) == nil {
					all.Go(s.Extend())
				}
				end()
			}
		})
	}
	all.Wait()
	if use, _ := b.Shared(Commands); use.Used != 0 || len(b.accounts) != 0 || b.all != (Limits{}) {
		t.Errorf("%+v are left, of %d holders", use, len(b.accounts))
	}
}

func TestLimitsAreWrittenByName(t *testing.T) {
	t.Parallel()
	l := limits(Commands, 3)
	l[SnapshotBytes] = 1 << 30
	m := l.Map()
	if len(m) != 2 || m["commands"] != 3 || m["snapshot_bytes"] != 1<<30 || LimitsFromMap(m) != l {
		t.Errorf("%v", m)
	}
	if LimitsFromMap(map[string]int64{"later": 1}) != (Limits{}) || (Limits{}).Map() != nil {
		t.Error("unknown names, or none")
	}
	for _, k := range Kinds() {
		if got, ok := KindByName(k.String()); !ok || got != k {
			t.Errorf("%v", k)
		}
	}
	if got := limits(Commands, 5).WithDefaults(l); got[Commands] != 5 || got[SnapshotBytes] != 1<<30 {
		t.Errorf("%v", got)
	}
	if text := Memory.Amount(3 << 19); text != "1.5 MiB" {
		t.Error(text)
	}
}
