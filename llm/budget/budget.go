package budget

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/llm"
	"boxgate/policy"
	"boxgate/store"
)

// Store stores the accounts; implemented by [store.Models].
type Store interface {
	All() (map[string]store.ModelAccount, error)
	Save(map[string]store.ModelAccount) error
	Delete(keys ...string) error
}

// Scope has the limits that a request of a box counts for.
type Scope struct {
	Box       []llm.Limit // of the box; all of them apply
	Key       string      // ID of the API key that made the box
	KeyLimits []llm.Limit // of the key; all of them apply
}

// Charge is the cost of one request.
type Charge struct {
	llm.Usage
	USD llm.Money
}

// Config configures a [Book].
type Config struct {
	Prices Prices
	All    llm.Limit // of all boxes together
	// Scope returns the limits for requests of a box. Requests of a box that it does not know are refused. It is called without locks.
	Scope func(box string) (Scope, bool)
	// Run returns the receiver of the cost of a request that the box begins now, such as its running command; nil: no receiver.
	Run   func(box string) func(Charge) `required:"false"`
	Store Store
	Log   *zap.Logger
	Now   func() time.Time `required:"false"` // nil: time.Now
}

// Book keeps the accounts. Safe for concurrent use. Its size is bounded by the number of boxes and API keys.
type Book struct {
	cfg     Config
	metrics *metrics

	mu       sync.Mutex
	accounts map[string]*account // by their keys in the store
	sequence uint64              // of the last reservation
	released bool                // another process owns the store

	saving sync.Mutex // serialises writes; taken before mu
	saved  uint64     // the last reservation that the store covers; guarded by saving
}

// New returns a book that continues the accounts of the store. The reservations of a killed process are charged. kept reports
// whether the account of an API key is still needed, by its ID.
func New(cfg Config, kept func(key string) bool) (*Book, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	b := &Book{cfg: cfg, accounts: map[string]*account{}}
	b.metrics = newMetrics(b)
	all, err := cfg.Store.All()
	if err != nil {
		return nil, err
	}
	var unneeded []string
	for key, record := range all {
		if id, ofKey := strings.CutPrefix(key, store.ModelAccountOfKey("")); ofKey && !kept(id) {
			unneeded = append(unneeded, key)
			continue
		}
		a := &account{key: key, record: record}
		a.recover(cfg.Now())
		b.accounts[key] = a
	}
	if len(unneeded) > 0 {
		if err := cfg.Store.Delete(unneeded...); err != nil {
			cfg.Log.Warn("the use of models by revoked API keys could not be removed; the next start tries again", zap.Error(err))
		}
	}
	return b, nil
}

// accountLocked returns an account, which it makes if it is missing.
func (b *Book) accountLocked(key string) *account {
	a := b.accounts[key]
	if a == nil {
		a = &account{key: key}
		b.accounts[key] = a
	}
	return a
}

// reason is the reason of a refusal in the log of decisions.
const reason = "model_budget"

// retrySoon is when to try again if running requests hold the rest of the limit.
const retrySoon = time.Second

// The most that one request, one box and one account may reserve: sums of reservations are never saturated, as they are subtracted again,
// and the requests of one box do not make those of others be refused.
const (
	maxCallTokens = 1e12
	maxCallUSD    = 10_000 * llm.Dollar
	maxHeld       = math.MaxInt64
	maxHeldOfBox  = maxHeld / 64
)

// share is a part of a request's cost: an account with the limits that apply to it.
type share struct {
	of      string // for messages: box, key or all
	account *account
	limits  []llm.Limit
}

// Reserve implements [llm.Meter].
func (b *Book) Reserve(box, _ string, c llm.Call) (llm.Reservation, error) {
	scope, known := b.cfg.Scope(box)
	if !known {
		return nil, b.refuse("box", &llm.Refusal{Message: "the budget of this box is not known"})
	}
	r := &reservation{book: b, call: c}
	r.price, r.most, r.unpriced = b.cfg.Prices.dearest(c)
	b.mu.Lock()
	shares := []share{
		{"box", b.accountLocked(store.ModelAccountOfBox(policy.BoxID(box))), scope.Box},
		{"key", b.accountLocked(store.ModelAccountOfKey(scope.Key)), scope.KeyLimits},
		{"all", b.accountLocked(store.ModelAccountOfAll), []llm.Limit{b.cfg.All}},
	}
	if of, refusal := b.judgeLocked(shares, r); refusal != nil {
		b.mu.Unlock()
		return nil, b.refuse(of, refusal)
	}
	wait := b.holdLocked(shares, r)
	released, sequence := b.released, b.sequence
	b.mu.Unlock()
	if wait {
		err := errReleased
		if !released {
			err = b.cover(sequence)
		}
		if err != nil {
			b.undo(r)
			return nil, b.refuse("store", &llm.Refusal{RetryAfter: retrySoon, Message: "the budget for models cannot be written now; try again"})
		}
	}
	if b.cfg.Run != nil {
		r.run = b.cfg.Run(box)
	}
	return r, nil
}

// refuse counts a refusal.
func (b *Book) refuse(of string, r *llm.Refusal) error {
	b.metrics.refused.WithLabelValues(of).Inc()
	r.Reason = reason
	return r
}

// judgeLocked returns the refusal of a request, and whose limit it is.
func (b *Book) judgeLocked(shares []share, r *reservation) (of string, refusal *llm.Refusal) {
	now := b.cfg.Now()
	if r.most.Tokens > maxCallTokens || r.most.USD > maxCallUSD {
		return "box", &llm.Refusal{Message: "this request asks for more tokens than a model answers with"}
	}
	for _, s := range shares {
		most := uint64(maxHeld)
		if s.of == "box" {
			most = maxHeldOfBox
		}
		if held := plus(s.account.reserved, r.most); held.Tokens > most || uint64(held.USD) > most {
			return s.of, &llm.Refusal{RetryAfter: retrySoon, Message: "too many requests to models are running; try again when some have ended"}
		}
		s.account.roll(now)
		for _, l := range s.limits {
			if l.USD > 0 && r.unpriced != "" {
				return "price", &llm.Refusal{Message: fmt.Sprintf(
					"the budget of %s is in dollars, and no price of the model %q is known: the operator sets prices.%q in the gateway's configuration",
					nameOf(s.of), r.unpriced, r.unpriced)}
			}
			if spent := s.account.against(s.of, l); l.Bounds() && !spent.allows(r.most) {
				return s.of, spent.refusal(r.most, now)
			}
		}
	}
	return "", nil
}

// nameOf names an account in messages to the box.
func nameOf(of string) string {
	switch of {
	case "box":
		return "this box"
	case "key":
		return "the API key that made this box"
	}
	return "all boxes"
}

// maxRetry bounds the wait that a client is asked for.
const maxRetry = 31 * 24 * time.Hour

// refusal returns the refusal of a request that may cost most. The message names the box's own limit; of another limit it has only
// the owner.
func (s Spending) refusal(most Amount, now time.Time) *llm.Refusal {
	limit := "the budget of " + nameOf(s.Of)
	if s.Of == "box" {
		limit += " (" + s.Limit.String() + ")"
	}
	unused := s
	unused.Reserved = Amount{}
	empty := Spending{Limit: s.Limit}
	switch {
	case !empty.allows(most):
		return &llm.Refusal{Message: limit + " is less than this request may cost: ask for fewer output tokens, or send less"}
	case unused.allows(most):
		return &llm.Refusal{RetryAfter: retrySoon, Message: limit + " is reserved by requests that are running; try again when they have ended"}
	case s.Ends.IsZero():
		return &llm.Refusal{Message: limit + " is used up"}
	}
	return &llm.Refusal{
		RetryAfter: min(max(s.Ends.Sub(now), retrySoon), maxRetry),
		Message:    fmt.Sprintf("%s has too little left for what this request may cost; the period ends at %s", limit, s.Ends.Format(time.RFC3339)),
	}
}

// holdLocked reserves in all accounts, and reports whether the store must be written before the request may leave.
func (b *Book) holdLocked(shares []share, r *reservation) (wait bool) {
	b.sequence++
	now := b.cfg.Now()
	for _, s := range shares {
		a := s.account
		a.reserved, a.calls, a.used = plus(a.reserved, r.most), a.calls+1, now
		a.headroom = headroom(s.limits, r.most)
		r.accounts = append(r.accounts, a)
		wait = wait || a.headroom != (Amount{}) && !a.covered()
	}
	return wait
}

const (
	headroomShare = 32 // the headroom is at most this part of a limit,
	headroomCalls = 8  // and enough for this many requests like the last
)

// headroom returns how much the store is ahead of the reservations of an account with limits; zero without limits.
func headroom(limits []llm.Limit, most Amount) Amount {
	bounded, calls := false, float64(headroomCalls)
	for _, l := range limits {
		if l.Tokens > 0 {
			calls = min(calls, float64(l.Tokens/headroomShare)/float64(max(most.Tokens, 1)))
		}
		if l.USD > 0 {
			calls = min(calls, float64(l.USD/headroomShare)/float64(max(most.USD, 1)))
		}
		bounded = bounded || l.Bounds()
	}
	if !bounded {
		return Amount{}
	}
	return Amount{Tokens: uint64(calls*float64(most.Tokens)) + 1, USD: llm.Money(calls * float64(most.USD))}
}

// undo takes back a reservation whose request does not leave.
func (b *Book) undo(r *reservation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range r.accounts {
		a.reserved, a.calls = less(a.reserved, r.most), a.calls-1
		a.dirty = true
	}
}

// reservation is the cost that is held for one request.
type reservation struct {
	book     *Book
	accounts []*account
	call     llm.Call
	price    Price  // of the dearest of its models
	unpriced string // label of a model without a price; "": none
	most     Amount
	run      func(Charge)
	settled  atomic.Bool
}

// Settle implements [llm.Reservation]. Further calls have no effect.
//
// A response that ended early, or had no usage, is charged its reservation: the vendor charges the tokens that it has generated, and u is an
// estimate.
func (r *reservation) Settle(u llm.Usage, model string, complete bool) {
	if r.settled.Swap(true) {
		return
	}
	b := r.book
	price, priced := r.price, r.unpriced == ""
	if p, known := b.cfg.Prices.Of(model); known {
		price, priced = p, true
	}
	if model == "" {
		model = r.call.Model
	}
	known := Amount{Tokens: u.Tokens(), USD: price.cost(u)}
	charged := known
	if !complete {
		all := u // the vendor may have added input that was not reserved
		all.Output = max(u.Output, r.price.maxOutput(r.call))
		charged = Amount{Tokens: max(all.Tokens(), r.most.Tokens), USD: max(price.cost(all), r.most.USD)}
	}
	b.mu.Lock()
	now := b.cfg.Now()
	for _, a := range r.accounts {
		a.roll(now)
		a.reserved, a.calls = less(a.reserved, r.most), a.calls-1
		a.charge(charged)
		a.record.Assumed = plus(a.record.Assumed, less(charged, known))
		a.count(Label(model), u, known.USD)
	}
	b.mu.Unlock()
	b.metrics.settled(price, priced, u, known.USD, less(charged, known), !covers(r.most, charged))
	if r.run != nil {
		r.run(Charge{u, known.USD})
	}
}

// errReleased is returned once another process owns the store.
var errReleased = errors.New("another process keeps the budget")
