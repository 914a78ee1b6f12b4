package budget

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/llm"
	"boxgate/policy"
	"boxgate/store"
)

// memory is a store of accounts that survives a book.
type memory struct {
	mu     sync.Mutex
	all    map[string]store.ModelAccount
	writes int
	err    error
}

func (m *memory) All() (map[string]store.ModelAccount, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.all), nil
}

func (m *memory) Save(records map[string]store.ModelAccount) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	if m.all == nil {
		m.all = map[string]store.ModelAccount{}
	}
	maps.Copy(m.all, records)
	m.writes++
	return nil
}

func (m *memory) Delete(keys ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.all, key)
	}
	return nil
}

// stored returns an account as stored, and the number of writes.
func (m *memory) stored(key string) (store.ModelAccount, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[key], m.writes
}

// rig is a book with its limits, which tests change.
type rig struct {
	*Book
	t      *testing.T
	store  *memory
	now    time.Time
	scopes map[string]Scope
	all    llm.Limit
	prices []Price
}

// noon is the time of a rig: noon of a day within a month.
var noon = time.Date(2026, 6, 10, 12, 30, 0, 0, time.UTC)

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, store: &memory{}, now: noon, scopes: map[string]Scope{"a": {Key: "k"}, "b": {Key: "k"}, "c": {Key: "other"}}}
	r.prices = []Price{{Pattern: "m-*", Input: 3 * llm.Dollar / 1e6, Output: 15 * llm.Dollar / 1e6, CacheRead: llm.Dollar / 1e6, CacheWrite: 4 * llm.Dollar / 1e6}}
	r.restart()
	return r
}

// restart makes another book on the same store, as after a kill: nothing is written.
func (r *rig) restart() {
	r.t.Helper()
	prices, err := NewPrices(r.prices)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Book, err = New(Config{
		Prices: prices, All: r.all, Store: r.store, Log: zap.NewNop(), Now: func() time.Time { return r.now },
		Scope: func(box string) (Scope, bool) { s, ok := r.scopes[box]; return s, ok },
	}, func(string) bool { return true })
	if err != nil {
		r.t.Fatal(err)
	}
}

// limit sets the limits of a box.
func (r *rig) limit(box string, limits ...llm.Limit) {
	s := r.scopes[box]
	s.Box = limits
	r.scopes[box] = s
}

// call is a request that may cost n tokens, a quarter of them input.
func call(n uint64) llm.Call {
	return llm.Call{Vendor: llm.Anthropic, Model: "m-1", Input: n / 4, Max: n - n/4}
}

// reserve reserves n tokens for a box.
func (r *rig) reserve(box string, n uint64) llm.Reservation {
	r.t.Helper()
	held, err := r.Reserve(box, "", call(n))
	if err != nil {
		r.t.Fatalf("Reserve(%s, %d): %v", box, n, err)
	}
	return held
}

// refused requires that a request is refused, and returns the refusal.
func (r *rig) refused(box string, c llm.Call) *llm.Refusal {
	r.t.Helper()
	held, err := r.Reserve(box, "", c)
	refusal, ok := errors.AsType[*llm.Refusal](err)
	if held != nil || !ok || refusal.Reason != "model_budget" || refusal.Message == "" {
		r.t.Fatalf("Reserve(%s, %+v) = %v, %v; want a refusal", box, c, held, err)
	}
	return refusal
}

// spend makes a request that costs n tokens of output.
func (r *rig) spend(box string, n uint64) {
	r.t.Helper()
	r.reserve(box, n).Settle(llm.Usage{Output: n, Requests: 1}, "m-1", true)
}

// used returns the tokens charged to an account.
func (r *rig) used(key string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.readLocked(key).record.Total.Tokens
}

func tokens(n uint64, per llm.Per) llm.Limit { return llm.Limit{Tokens: n, Per: per} }

const keyK = "key k"

func TestAttackFiftyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]llm.Limit{"tokens": tokens(100_000, llm.PerDay), "usd": {USD: llm.Dollar, Per: llm.PerDay}} {
		for _, of := range []string{"box", "key", "all"} {
			t.Run(name+" of "+of, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				switch of {
				case "box":
					r.limit("a", limit)
				case "key":
					r.scopes["a"] = Scope{Key: "k", KeyLimits: []llm.Limit{limit}}
				case "all":
					r.all = limit
					r.restart()
				}
				attackAtOnce(t, r, limit)
			})
		}
	}
}

// attackAtOnce sends a request from each of 50 clients of a box in three rounds. None of a round ends before all have asked. Each costs all
// that it may.
func attackAtOnce(t *testing.T, r *rig, limit llm.Limit) {
	c := llm.Call{Model: "m-1", Input: 1000, Max: 4000}
	usage := llm.Usage{CacheWrite: 1000, Output: 4000, Requests: 1}
	each := Amount{Tokens: usage.Tokens(), USD: r.cfg.Prices.list[0].cost(usage)}
	var let atomic.Int64
	for range 3 {
		var clients, asked sync.WaitGroup
		asked.Add(50)
		for range 50 {
			clients.Go(func() {
				held, err := r.Reserve("a", "", c)
				asked.Done()
				asked.Wait()
				if err == nil {
					let.Add(1)
					held.Settle(usage, "m-1", true)
				}
			})
		}
		clients.Wait()
	}
	total := Amount{Tokens: each.Tokens * uint64(let.Load()), USD: each.USD * llm.Money(let.Load())}
	if limit.Tokens > 0 && total.Tokens > limit.Tokens || limit.USD > 0 && total.USD > limit.USD {
		t.Errorf("%d requests cost %+v, over the limit %v", let.Load(), total, limit)
	}
	room := plus(total, each)
	if limit.Tokens > 0 && room.Tokens <= limit.Tokens || limit.USD > 0 && room.USD <= limit.USD {
		t.Errorf("only %d requests were let through: one more fits %v", let.Load(), limit)
	}
	if got := r.used("box a"); got != total.Tokens {
		t.Errorf("the box is charged %d tokens, want %d", got, total.Tokens)
	}
}

func TestReservationsCountUntilTheySettle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit("a", tokens(1000, llm.PerTotal))
	held := r.reserve("a", 800)
	if got := r.refused("a", call(400)); got.RetryAfter != time.Second || !strings.Contains(got.Message, "reserved") {
		t.Errorf("refusal while a request runs: %+v", got)
	}
	if got := r.refused("a", call(1001)); got.RetryAfter != 0 || !strings.Contains(got.Message, "less than this request may cost") {
		t.Errorf("refusal of a request beyond the limit: %+v", got)
	}
	held.Settle(llm.Usage{Input: 100, Output: 100, Requests: 1}, "m-1", true)
	held.Settle(llm.Usage{Input: 100, Output: 100, Requests: 1}, "m-1", true) // only once
	r.spend("a", 800)
	if got := r.refused("a", call(4)); got.RetryAfter != 0 || !strings.Contains(got.Message, "used up") {
		t.Errorf("refusal at the end: %+v", got)
	}
	v := r.OfBox("a")
	if v.Requests != 2 || v.Input != 100 || v.Output != 900 || v.USD != 100*3*llm.Dollar/1e6+900*15*llm.Dollar/1e6 || len(v.Budgets) != 1 || v.Budgets[0].Used.Tokens != 1000 {
		t.Errorf("view: %+v", v)
	}
}

func TestPeriodsEnd(t *testing.T) {
	t.Parallel()
	for per, next := range map[llm.Per]time.Time{
		llm.PerHour: time.Date(2026, 6, 10, 13, 0, 0, 0, time.UTC), llm.PerDay: time.Date(2026, 6, 11, 0, 0, 0, 0, time.UTC),
		llm.PerMonth: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC),
	} {
		r := newRig(t)
		r.limit("a", tokens(1000, per))
		r.spend("a", 900)
		if got := r.refused("a", call(200)); got.RetryAfter != next.Sub(r.now) || !strings.Contains(got.Message, next.Format(time.RFC3339)) {
			t.Errorf("per %s: %+v, want a retry at %v", per, got, next)
		}
		r.now = next.Add(-time.Second)
		r.refused("a", call(200))
		r.now = next
		r.spend("a", 1000)
		r.refused("a", call(4))
	}
	december := numberOf(llm.PerMonth, time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC))
	if got := endOf(llm.PerMonth, december); !got.Equal(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("December ends at %v", got)
	}
}

// TestPeriodsEndByTheClock is the same with the clock of the process.
func TestPeriodsEndByTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.Now = time.Now
		r.limit("a", tokens(1000, llm.PerHour))
		r.spend("a", 1000)
		time.Sleep(r.refused("a", call(4)).RetryAfter - time.Second)
		r.refused("a", call(4))
		time.Sleep(time.Second)
		r.spend("a", 1000)
	})
}

// TestAttackClockThatIsSetBack sets the clock back over the beginning of a period, and restarts the gateway there.
func TestAttackClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	for _, per := range llm.Periods {
		r := newRig(t)
		r.limit("a", tokens(1000, per))
		r.spend("a", 1000)
		for _, back := range []time.Duration{time.Minute, 2 * time.Hour, 48 * time.Hour, 400 * 24 * time.Hour} {
			r.now = noon.Add(-back)
			r.refused("a", call(4))
			if err := r.Save(); err != nil {
				t.Fatal(err)
			}
			r.restart()
			r.refused("a", call(4))
		}
		r.now = noon
		r.refused("a", call(4))
	}
}

func TestAttackModelWithoutPrice(t *testing.T) {
	t.Parallel()
	for of, set := range map[string]func(r *rig){
		"this box": func(r *rig) { r.limit("a", llm.Limit{USD: llm.Dollar, Per: llm.PerDay}) },
		"the API key that made this box": func(r *rig) {
			r.scopes["a"] = Scope{Key: "k", KeyLimits: []llm.Limit{{USD: llm.Dollar, Per: llm.PerDay}}}
		},
		"all boxes": func(r *rig) { r.all = llm.Limit{USD: llm.Dollar, Per: llm.PerDay}; r.restart() },
	} {
		r := newRig(t)
		set(r)
		c := call(8)
		for _, model := range []string{"unpriced\x1b[31m", "", "m" + strings.Repeat("-", 200), "x/m-1"} {
			c.Model = model
			got := r.refused("a", c)
			if !strings.Contains(got.Message, of) || !strings.Contains(got.Message, fmt.Sprintf("prices.%q", Label(model))) || strings.ContainsAny(got.Message, "\x1b\n") {
				t.Errorf("refusal of the model %q: %q", model, got.Message)
			}
		}
		r.reserve("a", 8)
	}
	r := newRig(t) // without a limit in dollars, the price may be unknown
	c := call(8)
	c.Model = "unpriced"
	if _, err := r.Reserve("a", "", c); err != nil {
		t.Error(err)
	}
}

func TestKeyIsSharedByItsBoxes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, box := range []string{"a", "b"} {
		r.scopes[box] = Scope{Key: "k", KeyLimits: []llm.Limit{tokens(1000, llm.PerDay)}}
	}
	r.spend("a", 600)
	got := r.refused("b", call(600))
	if !strings.Contains(got.Message, "API key") || strings.Contains(got.Message, "1000") {
		t.Errorf("the refusal of another box: %q", got.Message)
	}
	r.spend("b", 400)
	r.refused("a", call(4))
	r.spend("c", 5000) // of another key
	if v := r.OfKey("k", []llm.Limit{tokens(1000, llm.PerDay)}); v.Output != 1000 || v.Budgets[0].Used.Tokens != 1000 {
		t.Errorf("the key: %+v", v)
	}
	if v := r.OfAll(); v.Output != 6000 {
		t.Errorf("all: %+v", v)
	}
}

// TestAttackDeletedBoxesKeepTheirKeysSpend: deleting boxes and making others does not open the budget of the key.
func TestAttackDeletedBoxesKeepTheirKeysSpend(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	scope := Scope{Box: []llm.Limit{tokens(600, llm.PerDay)}, Key: "k", KeyLimits: []llm.Limit{tokens(1000, llm.PerDay)}}
	r.scopes = map[string]Scope{"a": scope}
	r.spend("a", 600)
	late := r.reserveAs(t, "a2", scope, 200) // still running when its box is deleted
	for _, box := range []string{"a", "a2"} {
		r.Forget(policy.BoxID(box))
		delete(r.scopes, box)
	}
	r.scopes["b"] = scope
	r.refused("b", call(240))
	late.Settle(llm.Usage{Output: 200, Requests: 1}, "m-1", true)
	r.refused("b", call(240))
	r.spend("b", 200)
	r.refused("b", call(4))
	r.refused("a", call(4)) // the box is not known
	if err := r.Save(); err != nil || r.store.all["box a"].Total.Tokens != 0 && len(r.accounts) > 3 {
		t.Errorf("after the deletion: %v, %d accounts", err, len(r.accounts))
	}
	if got := r.used(keyK); got != 1000 {
		t.Errorf("the key is charged %d", got)
	}
}

// reserveAs is reserve for another box.
func (r *rig) reserveAs(t *testing.T, box string, scope Scope, n uint64) llm.Reservation {
	t.Helper()
	r.scopes[box] = scope
	return r.reserve(box, n)
}

// TestAttackResponseThatIsCutShort: a box that closes before the vendor reports is charged what it reserved.
func TestAttackResponseThatIsCutShort(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		seen llm.Usage
		want uint64
	}{
		"nothing reported": {llm.Usage{}, 1000},
		"an estimate":      {llm.Usage{Input: 10, CacheRead: 5, Output: 1, Requests: 1}, 1000},
		"more than asked":  {llm.Usage{Input: 10, Output: 1900, Requests: 1}, 1910},
		"input estimated":  {llm.Usage{Input: 200_100, Requests: 1}, 200_850},
		"input of a URL":   {llm.Usage{Input: 4000, CacheRead: 1000, Output: 3, Requests: 1}, 5750},
	} {
		r := newRig(t)
		r.reserve("a", 1000).Settle(tt.seen, "m-1", false)
		if got := r.used("box a"); got != tt.want {
			t.Errorf("%s: charged %d, want %d", name, got, tt.want)
		}
		v := r.OfBox("a")
		if v.Usage != tt.seen || v.Assumed.Tokens != tt.want-tt.seen.Tokens() || v.USD+v.Assumed.USD != r.accounts["box a"].record.Total.USD {
			t.Errorf("%s: view %+v", name, v)
		}
	}
}

// TestAttackHugeRequests: numbers near the ends of their types neither wrap around nor free what others have reserved.
func TestAttackHugeRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit("b", tokens(1000, llm.PerTotal))
	for _, c := range []llm.Call{{Model: "m-1", Max: ^uint64(0)}, {Model: "m-1", Input: ^uint64(0), Max: 1}, {Model: "m-1", Input: ^uint64(0), Max: ^uint64(0)}, {Model: "m-1", Max: 1 << 62}} {
		r.refused("a", c)
		r.refused("b", c)
	}
	held := r.reserve("b", 1000)
	held.Settle(llm.Usage{Input: ^uint64(0), Output: ^uint64(0), CacheRead: 7, Requests: 1}, "m-1", true)
	r.refused("b", call(4))
	if got := r.used("box b"); got != ^uint64(0) {
		t.Errorf("charged %d", got)
	}
	if got := headroom([]llm.Limit{tokens(llm.MaxTokens, llm.PerDay)}, Amount{Tokens: maxCallTokens}); got.Tokens > llm.MaxTokens/headroomShare+1 {
		t.Errorf("headroom %v", got)
	}
}

// TestAttackReservationsOfOneBox: a box without a limit cannot reserve so much that requests of other boxes are refused.
func TestAttackReservationsOfOneBox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reserve("b", 1000)
	most := llm.Call{Model: "m-1", Max: uint64(maxCallUSD / (15 * llm.Dollar / 1e6))}
	for ; most.Max > 1; most.Max /= 2 {
		for range 20_000 {
			if _, err := r.Reserve("a", "", most); err != nil {
				break
			}
		}
	}
	most.Max = 1 << 20
	r.refused("a", most)
	r.reserve("b", 1000)
	r.reserve("c", 1000)
}

// TestAttackFallbacks: a request reserves for the dearest of its models, each of which needs a price.
func TestAttackFallbacks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.prices = append(r.prices, Price{Pattern: "dear", Input: llm.Dollar, Output: llm.Dollar, MaxOutput: 10})
	r.restart()
	c := call(100)
	c.Others = "m-2 dear m-3"
	held, err := r.Reserve("a", "", c)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.accounts["box a"].reserved; got != (Amount{Tokens: 100, USD: 100 * llm.Dollar}) {
		t.Errorf("reserved %+v", got)
	}
	held.Settle(llm.Usage{}, "", false)
	if got := r.accounts["box a"].record.Total; got != (Amount{Tokens: 100, USD: 100 * llm.Dollar}) {
		t.Errorf("charged %+v", got)
	}
	r.limit("a", llm.Limit{USD: 1000 * llm.Dollar, Per: llm.PerDay})
	c.Others = "unknown"
	if refusal := r.refused("a", c); !strings.Contains(refusal.Message, `"unknown"`) {
		t.Errorf("%v", refusal)
	}
	c.Max, c.Others = 0, "dear" // the maximum of the other one is larger
	held, _ = r.Reserve("b", "", c)
	if got := r.accounts["box b"].reserved.Tokens; held == nil || got != c.Input+DefaultMaxOutput {
		t.Errorf("reserved %d tokens", got)
	}
}

// TestModelsAreBounded: names of models are the box's.
func TestModelsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 100 {
		r.reserve("a", 4).Settle(llm.Usage{Output: 1, Requests: 1}, fmt.Sprintf("model <%d>\x00", i), true)
	}
	v := r.OfBox("a")
	if len(v.Models) != maxModels+1 || v.Output != 100 || v.Models[0].Model != OtherModels || v.Models[0].Output != 100-maxModels {
		t.Errorf("%d models, %d tokens, first %+v", len(v.Models), v.Output, v.Models[0])
	}
	for _, m := range v.Models {
		if Label(m.Model) != m.Model || strings.ContainsAny(m.Model, "<>\x00 ") {
			t.Errorf("the label %q", m.Model)
		}
	}
}

// TestDefaultMaximum: a request that states no maximum reserves that of its price, or else the default.
func TestDefaultMaximum(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.prices = append(r.prices, Price{Pattern: "m-2", MaxOutput: 500})
	r.restart()
	for model, want := range map[string]uint64{"m-1": DefaultMaxOutput + 10, "m-2": 510, "unknown": DefaultMaxOutput + 10} {
		held, err := r.Reserve("a", "", llm.Call{Model: model, Input: 10})
		if err != nil || r.accounts["box a"].reserved.Tokens != want {
			t.Errorf("%s: reserved %v, %v; want %d", model, r.accounts["box a"].reserved, err, want)
			continue
		}
		held.Settle(llm.Usage{}, model, true)
	}
}

// TestRunsGetTheirCharges passes what requests cost to the run that began them.
func TestRunsGetTheirCharges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var got Charge
	r.cfg.Run = func(box string) func(Charge) {
		if box != "a" {
			return nil
		}
		return func(c Charge) { got.Usage, got.USD = got.Plus(c.Usage), got.USD+c.USD }
	}
	r.spend("a", 100)
	r.spend("b", 100)
	if got.Output != 100 || got.Requests != 1 || got.USD != 100*15*llm.Dollar/1e6 {
		t.Errorf("the run has %+v", got)
	}
}

// TestRandomRequests compares the accounts of random requests with their sums.
func TestRandomRequests(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	r := newRig(t)
	r.limit("a", tokens(1_000_000, llm.PerTotal))
	want := map[string]uint64{}
	var running []func()
	for range 3000 {
		box := []string{"a", "b", "c"}[random.IntN(3)]
		if held, err := r.Reserve(box, "", call(4+random.Uint64N(9000))); err == nil {
			n := random.Uint64N(1000)
			running = append(running, func() {
				held.Settle(llm.Usage{Input: n, Requests: 1}, "m-1", true)
				want[box] += n
			})
		}
		if len(running) > random.IntN(60) {
			i := random.IntN(len(running))
			running[i]()
			running = append(running[:i], running[i+1:]...)
		}
	}
	for _, end := range running {
		end()
	}
	for key, n := range map[string]uint64{"box a": want["a"], "box b": want["b"], keyK: want["a"] + want["b"], "@": want["a"] + want["b"] + want["c"]} {
		if a := r.accounts[key]; a.record.Total.Tokens != n || a.reserved != (Amount{}) || a.calls != 0 {
			t.Errorf("%s: %+v, %d reserved; want %d", key, a.record.Total, a.reserved.Tokens, n)
		}
	}
}
