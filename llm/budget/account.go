package budget

import (
	"cmp"
	"slices"
	"time"

	"boxgate/llm"
	"boxgate/store"
)

// Amount is a number of tokens and their price.
type Amount = store.ModelAmount

func plus(a, b Amount) Amount {
	return Amount{Tokens: llm.Add(a.Tokens, b.Tokens), USD: a.USD.Plus(b.USD)}
}

// less returns a without b, at least 0.
func less(a, b Amount) Amount {
	return Amount{Tokens: a.Tokens - min(a.Tokens, b.Tokens), USD: a.USD - min(a.USD, b.USD)}
}

// least returns the smaller of each amount.
func least(a, b Amount) Amount {
	return Amount{Tokens: min(a.Tokens, b.Tokens), USD: min(a.USD, b.USD)}
}

// covers reports whether a is at least b.
func covers(a, b Amount) bool { return a.Tokens >= b.Tokens && a.USD >= b.USD }

// account is the use of models by a box, an API key or all boxes together. The mutex of its [Book] guards it.
type account struct {
	key      string // in the store
	record   store.ModelAccount
	reserved Amount    // by running requests
	calls    int       // running requests
	headroom Amount    // to store ahead beyond the reservations; zero: the account has no limit
	used     time.Time // last reservation
	stored   Amount    // covered by the store: the total and Ahead of its record
	dirty    bool      // the record differs from the store's
	gone     bool      // its box was deleted: it is not stored
}

// spent returns the used and reserved amounts.
func (a *account) spent() Amount { return plus(a.record.Total, a.reserved) }

// covered reports whether the store covers all reservations.
func (a *account) covered() bool { return covers(a.stored, a.spent()) }

// numberOf returns the number of a period at a time.
func numberOf(per llm.Per, t time.Time) int64 {
	t = t.UTC()
	switch per {
	case llm.PerHour:
		return t.Unix() / 3600
	case llm.PerDay:
		return t.Unix() / 86400
	case llm.PerMonth:
		return int64(t.Year())*12 + int64(t.Month()) - 1
	}
	return 0
}

// endOf returns the end of a period. It is zero for a period that does not end.
func endOf(per llm.Per, number int64) time.Time {
	switch per {
	case llm.PerHour:
		return time.Unix((number+1)*3600, 0).UTC()
	case llm.PerDay:
		return time.Unix((number+1)*86400, 0).UTC()
	case llm.PerMonth:
		return time.Date(int((number+1)/12), time.Month((number+1)%12+1), 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Time{}
}

// windows returns the periods that start again.
func (a *account) windows() map[llm.Per]*store.ModelWindow {
	return map[llm.Per]*store.ModelWindow{llm.PerHour: &a.record.Hour, llm.PerDay: &a.record.Day, llm.PerMonth: &a.record.Month}
}

// window returns the window of a period that starts again, or nil.
func (a *account) window(per llm.Per) *store.ModelWindow {
	switch per {
	case llm.PerHour:
		return &a.record.Hour
	case llm.PerDay:
		return &a.record.Day
	case llm.PerMonth:
		return &a.record.Month
	}
	return nil
}

// roll begins the periods of a time. A period never returns to an earlier one: a clock that is set back opens no budget.
func (a *account) roll(now time.Time) {
	for _, per := range llm.Periods {
		if w := a.window(per); w != nil {
			if n := numberOf(per, now); n > w.Number {
				*w = store.ModelWindow{Number: n}
			}
		}
	}
}

// usedIn returns the amount used in the current period.
func (a *account) usedIn(per llm.Per) Amount {
	if w := a.window(per); w != nil {
		return w.Used
	}
	return a.record.Total
}

// endsAt returns when the current period ends.
func (a *account) endsAt(per llm.Per) time.Time {
	if w := a.window(per); w != nil {
		return endOf(per, w.Number)
	}
	return time.Time{}
}

// charge adds a used amount to the total and to every period.
func (a *account) charge(n Amount) {
	a.record.Total = plus(a.record.Total, n)
	for _, w := range a.windows() {
		w.Used = plus(w.Used, n)
	}
	a.dirty = true
}

// recover charges the amount that was ahead of the total when an earlier process ended.
func (a *account) recover(now time.Time) {
	a.stored = plus(a.record.Total, a.record.Ahead)
	if a.record.Ahead == (Amount{}) {
		return
	}
	a.roll(now)
	a.charge(a.record.Ahead)
	a.record.Assumed = plus(a.record.Assumed, a.record.Ahead)
	a.record.Ahead = Amount{}
}

// maxModels is the most models of one account. The use of others is added to [OtherModels].
const maxModels = 32

// OtherModels is the name for all models beyond the first 32 of an account.
const OtherModels = "other"

// count adds to the sums of a model.
func (a *account) count(label string, u llm.Usage, usd llm.Money) {
	if a.record.Models == nil {
		a.record.Models = map[string]store.ModelSum{}
	}
	if _, known := a.record.Models[label]; !known && len(a.record.Models) >= maxModels {
		label = OtherModels
	}
	s := a.record.Models[label]
	now := usageOf(s).Plus(u)
	a.record.Models[label] = store.ModelSum{
		Input: now.Input, Output: now.Output, CacheRead: now.CacheRead, CacheWrite: now.CacheWrite, Reasoning: now.Reasoning, Requests: now.Requests,
		USD: s.USD.Plus(usd),
	}
	a.dirty = true
}

func usageOf(s store.ModelSum) llm.Usage {
	return llm.Usage{Input: s.Input, Output: s.Output, CacheRead: s.CacheRead, CacheWrite: s.CacheWrite, Reasoning: s.Reasoning, Requests: s.Requests}
}

// Sum is the use of one model, or of several.
type Sum struct {
	Model string // a [Label]; [OtherModels]: several
	llm.Usage
	USD llm.Money
}

// View is the use of models by one account.
type View struct {
	Sum                // of all models
	Models  []Sum      // the dearest first, then those with most tokens
	Assumed Amount     // charged without a report of the vendor: responses that ended early, and requests that ran when a gateway was killed
	Budgets []Spending // of the limits that apply
}

// Spending is a limit with its use.
type Spending struct {
	Of             string // box, key or all
	Limit          llm.Limit
	Used, Reserved Amount
	Ends           time.Time // of the period; zero: never
}

// view returns the use of models, without limits.
func (a *account) view() View {
	var v View
	for label, s := range a.record.Models {
		v.Models = append(v.Models, Sum{label, usageOf(s), s.USD})
		v.Usage, v.USD = v.Usage.Plus(usageOf(s)), v.USD.Plus(s.USD)
	}
	slices.SortFunc(v.Models, func(a, b Sum) int {
		return cmp.Or(cmp.Compare(b.USD, a.USD), cmp.Compare(b.Tokens(), a.Tokens()), cmp.Compare(a.Model, b.Model))
	})
	v.Assumed = a.record.Assumed
	return v
}

// against returns a limit with its use by the account.
func (a *account) against(of string, l llm.Limit) Spending {
	return Spending{Of: of, Limit: l, Used: a.usedIn(l.Per), Reserved: a.reserved, Ends: a.endsAt(l.Per)}
}

// allows reports whether a limit allows n more.
func (s Spending) allows(n Amount) bool {
	all := plus(plus(s.Used, s.Reserved), n)
	return (s.Limit.Tokens == 0 || all.Tokens <= s.Limit.Tokens) && (s.Limit.USD == 0 || all.USD <= s.Limit.USD)
}
