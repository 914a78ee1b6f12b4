package quota

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Config configures [New].
type Config struct {
	// Defaults are the limits of holders without their own. 0: no limit.
	Defaults Limits
	// Totals bound the usage of all holders together. Holders other than the operator share three quarters of each; the
	// operator is only limited by the total of [Memory]. 0: no limit.
	Totals Limits
	// Now returns the time for rates. nil: time.Now.
	Now func() time.Time
}

// Book records the usage of each holder. Create it with [New]. Safe for concurrent use. It forgets holders without usage,
// so its size is bounded by the current usage and the limits given to [Book.Set].
type Book struct {
	defaults, totals Limits
	now              func() time.Time

	mu          sync.Mutex
	own         map[id]Limits // limits that differ from the defaults, by holder
	accounts    map[id]*account
	all         Limits // usage of all holders
	nonOperator Limits // usage of all except the operator
	refused     Limits
	counts      [kinds]func(Holder) int64
	shared      [kinds]*rate.Limiter // of all except the operator
	waiters     waiters
}

// id identifies a holder.
type id struct{ what, id string }

func (h Holder) key() id { return id{h.Type, h.ID} }

// account is the usage of one holder.
type account struct {
	holder Holder
	used   Limits
	rates  [kinds]*rate.Limiter
}

// New creates an empty book.
func New(cfg Config) *Book {
	b := &Book{defaults: cfg.Defaults, totals: cfg.Totals, now: cfg.Now, own: map[id]Limits{}, accounts: map[id]*account{}}
	if b.now == nil {
		b.now = time.Now
	}
	return b
}

// Set sets the limits of a holder; the defaults apply where a limit is 0. Usage above a lower limit stays until it is
// released. Zero limits remove the holder's own limits.
func (b *Book) Set(h Holder, own Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.own[h.key()] == own {
		return
	}
	if own == (Limits{}) {
		delete(b.own, h.key())
	} else {
		b.own[h.key()] = own
	}
	if a := b.accounts[h.key()]; a != nil {
		a.rates = [kinds]*rate.Limiter{}
	}
}

// Limit returns a holder's limit; 0: no limit.
func (b *Book) Limit(h Holder, k Kind) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limitLocked(h, k)
}

func (b *Book) limitLocked(h Holder, k Kind) int64 {
	if h.Operator {
		return 0
	}
	if own := b.own[h.key()][k]; own != 0 {
		return own
	}
	return b.defaults[k]
}

// Count sets the function that counts the usage of a kind from state, for [Book.Use]. It is called without the book's lock.
func (b *Book) Count(k Kind, count func(Holder) int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts[k] = count
}

// Acquire takes n of a kind for a holder until release is called; further calls of release have no effect. If the holder would
// exceed its limit, or the total is used up, Acquire fails with an [*Error].
func (b *Book) Acquire(h Holder, k Kind, n int64) (release func(), err error) {
	if err := b.acquire(h, k, n); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { b.release(h, k, n) }), nil
}

func (b *Book) acquire(h Holder, k Kind, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.checkLocked(h, k, b.usedLocked(h, k), n); err != nil {
		b.refused[k]++
		return err
	}
	b.addLocked(h, k, n)
	return nil
}

// addUnchecked takes n without checking limits.
func (b *Book) addUnchecked(h Holder, k Kind, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(h, k, n)
}

func (b *Book) release(h Holder, k Kind, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(h, k, -n)
}

func (b *Book) usedLocked(h Holder, k Kind) int64 {
	if a := b.accounts[h.key()]; a != nil {
		return a.used[k]
	}
	return 0
}

func (b *Book) addLocked(h Holder, k Kind, n int64) {
	a := b.accountLocked(h)
	a.used[k] += n
	b.all[k] += n
	if !h.Operator {
		b.nonOperator[k] += n
	}
	b.forgetIdleLocked(a)
	if n < 0 {
		b.waiters.wakeAll()
	}
}

func (b *Book) accountLocked(h Holder) *account {
	a := b.accounts[h.key()]
	if a == nil {
		a = &account{holder: h}
		b.accounts[h.key()] = a
	}
	return a
}

// forgetIdleLocked forgets a holder without usage whose rates have recovered.
func (b *Book) forgetIdleLocked(a *account) {
	if a.used != (Limits{}) {
		return
	}
	for _, r := range a.rates {
		if r != nil && r.TokensAt(b.now()) < float64(r.Burst()) {
			return
		}
	}
	delete(b.accounts, a.holder.key())
}

// scarceDivisor determines how much one holder may have when less than a quarter of the share is left: this fraction of the
// remainder. The threshold sinks with the remainder, so that a late holder still gets something.
const scarceDivisor = 16

// checkLocked returns nil if a holder that already has some of a kind may have n more.
func (b *Book) checkLocked(h Holder, k Kind, has, n int64) error {
	refusal := &Error{Holder: h, Kind: k, Used: has, Limit: b.limitLocked(h, k), After: time.Second}
	if k.Counted() {
		refusal.After = time.Minute // it takes an action to free some
	}
	if refusal.Limit != 0 && has+n > refusal.Limit {
		return refusal
	}
	total := b.totals[k]
	if total == 0 {
		return nil
	}
	refusal.Shared, refusal.Limit = true, total
	if h.Operator {
		if k == Memory && b.all[k]+n > total { // beyond the total the process is killed
			return refusal
		}
		return nil
	}
	share := shareOf(total)
	refusal.Limit = share
	left := share - b.nonOperator[k] - n
	if has+n > share/2 || left < 0 || left < share/4 && (has+n)*scarceDivisor > left {
		return refusal
	}
	return nil
}

// shareOf returns the part of a total for holders other than the operator.
func shareOf(total int64) int64 { return max(1, total/4*3) }

// Reserve requests n more of a kind that is counted from state. count returns the usage of the holder; it is called with
// the book locked and must not call the book. n is added to the result of count until done is called: call it once count
// includes the new objects, or their creation has failed. Further calls of done have no effect.
func (b *Book) Reserve(h Holder, k Kind, n int64, count func() int64) (done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.checkLocked(h, k, b.usedLocked(h, k)+count(), n); err != nil {
		b.refused[k]++
		return nil, err
	}
	b.addLocked(h, k, n)
	return sync.OnceFunc(func() { b.release(h, k, n) }), nil
}

// Rate counts one more of a kind that is a rate. It fails with an [*Error] if that exceeds the holder's limit per hour, or,
// except for the operator, three quarters of the total.
func (b *Book) Rate(h Holder, k Kind) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if h.Operator {
		return nil
	}
	defer b.sweepLocked()
	own, all := b.limiterLocked(h, k), b.sharedLocked(k)
	for _, l := range []*rate.Limiter{own, all} {
		if l == nil || l.TokensAt(now) >= 1 {
			continue
		}
		b.refused[k]++
		missing := (1 - l.TokensAt(now)) / float64(l.Limit())
		return &Error{
			Holder: h, Kind: k, Used: int64(l.Burst()), Limit: int64(l.Burst()), Shared: l == all,
			After: time.Duration(missing * float64(time.Second)),
		}
	}
	for _, l := range []*rate.Limiter{own, all} {
		if l != nil {
			l.AllowN(now, 1)
		}
	}
	return nil
}

// limiterLocked returns the limiter of a holder's rate; nil: no limit.
func (b *Book) limiterLocked(h Holder, k Kind) *rate.Limiter {
	limit := b.limitLocked(h, k)
	if limit == 0 {
		return nil
	}
	a := b.accountLocked(h)
	if a.rates[k] == nil {
		a.rates[k] = perHour(limit)
	}
	return a.rates[k]
}

// sharedLocked returns the limiter of all holders except the operator; nil: no limit.
func (b *Book) sharedLocked(k Kind) *rate.Limiter {
	if b.shared[k] == nil && b.totals[k] != 0 {
		b.shared[k] = perHour(shareOf(b.totals[k]))
	}
	return b.shared[k]
}

func perHour(n int64) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(float64(n)/window.Seconds()), int(n))
}

// sweepLocked forgets some holders whose rates have recovered. It checks more holders than one call of Rate can add.
func (b *Book) sweepLocked() {
	n := 0
	for _, a := range b.accounts {
		if n++; n > sweepBatch {
			return
		}
		b.forgetIdleLocked(a)
	}
}

// sweepBatch is how many holders sweepLocked checks.
const sweepBatch = 8

// Use is the usage of one kind.
type Use struct {
	Used, Limit int64 // Limit 0: no limit
}

// Uses is the usage of each kind.
type Uses [kinds]Use

// Use returns the usage of a holder. Kinds counted from state are counted by the functions given to [Book.Count].
func (b *Book) Use(h Holder) Uses {
	b.mu.Lock()
	var out Uses
	counts := b.counts
	a := b.accounts[h.key()]
	for _, k := range Kinds() {
		out[k].Limit = b.limitLocked(h, k)
		if a == nil {
			continue
		}
		out[k].Used = a.used[k]
		if r := a.rates[k]; r != nil {
			out[k].Used = int64(float64(r.Burst()) - r.TokensAt(b.now()))
		}
	}
	b.mu.Unlock()
	for k, count := range counts {
		if count != nil {
			out[k].Used = count(h)
		}
	}
	return out
}

// HolderUsage is a holder with its usage.
type HolderUsage struct {
	Holder Holder
	Uses   Uses
}

// Holders returns the usage of holders with the given Holder.Type that have taken something, and of also. They are ordered by
// the highest fraction of a quota that they have used, highest first, and at most most are returned.
func (b *Book) Holders(what string, most int, also ...Holder) []HolderUsage {
	var out []HolderUsage
	known := map[id]bool{}
	for _, h := range append(b.holders(what), also...) {
		if known[h.key()] {
			continue
		}
		known[h.key()] = true
		out = append(out, HolderUsage{h, b.Use(h)})
	}
	slices.SortFunc(out, func(x, y HolderUsage) int {
		return cmp.Or(cmp.Compare(y.ratio(), x.ratio()), cmp.Compare(x.Holder.ID, y.Holder.ID))
	})
	return out[:min(len(out), most)]
}

func (b *Book) holders(what string) (out []Holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.accounts {
		if a.holder.Type == what {
			out = append(out, a.holder)
		}
	}
	return out
}

// ratio returns the highest fraction of a quota that the holder has used.
func (h *HolderUsage) ratio() float64 {
	most := 0.0
	for _, u := range h.Uses {
		if u.Limit > 0 {
			most = max(most, float64(u.Used)/float64(u.Limit))
		}
	}
	return most
}

// Shared returns the usage of all holders except the operator with its limit (0: no limit), and how often a request of any
// holder was refused.
func (b *Book) Shared(k Kind) (use Use, refused int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.totals[k] != 0 {
		use.Limit = shareOf(b.totals[k])
	}
	use.Used = b.nonOperator[k]
	return use, b.refused[k]
}

// Values of [Holder].Type.
const (
	APIKey  = "API key"
	Box     = "box"
	Network = "network" // of unauthenticated clients
)

// Holder is an owner of quotas. Two holders are the same if Type and ID are equal; the other fields may change.
type Holder struct {
	Type string // such as APIKey; a namespace for IDs
	ID   string
	Name string // for messages; empty: the ID
	// Operator: the holder has no individual limits.
	Operator bool
}

// String names a holder in messages.
func (h Holder) String() string {
	name := h.Name
	if name == "" {
		name = h.ID
	}
	return h.Type + " " + name
}

// Error reports that a quota is used up. The API answers it with 429.
type Error struct {
	Holder Holder
	Kind   Kind
	Used   int64 // the usage of the holder
	Limit  int64 // of the holder; with Shared of all holders except the operator, or of all if the holder is the operator
	Shared bool  // the total is used up, not the quota of the holder
	// After is when to try again: an estimate if other holders have to release something.
	After time.Duration
}

// Error returns the quota, its limit and the remedy.
func (e *Error) Error() string {
	t := traitsOf[e.Kind]
	if e.Shared {
		return fmt.Sprintf("there is no room for more from %s: all keys together may have %s %s (the total of quotas.%s), and it has %s of them; try again later",
			e.Holder, e.Kind.Amount(e.Limit), t.noun, e.Kind, e.Kind.Amount(e.Used))
	}
	most := "as many as it may"
	if e.Used < e.Limit || e.Kind.InBytes() {
		most = "and may have " + e.Kind.Amount(e.Limit)
	}
	return fmt.Sprintf("%s has %s %s, %s (quotas.%s); %s, or have the operator raise it",
		e.Holder, e.Kind.Amount(e.Used), t.noun, most, e.Kind, t.remedy)
}
