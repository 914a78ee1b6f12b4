// Package memory shares out the memory that peers nobody trusts can make the gateway hold: buffers, windows, the state of
// connections and of decoders. A [Budget] is what there is for all; each box has an [Account] in it. Work asks its account
// before it holds anything, for as much as it can come to hold, and is refused when the account has no more: so a box that
// hoards is refused new work, and nobody else is.
//
// Nothing is allocated here; what is acquired is a promise of the caller's to hold no more than that. Acquiring takes no
// lock.
package memory

import (
	"sync"
	"sync/atomic"
)

// Kind is what memory is held for. There are few, so that they can be labels of a metric.
type Kind uint8

// What memory is held for.
const (
	Connections Kind = iota // sockets, goroutines and small buffers of connections
	FirstBytes              // first messages beyond what a connection has anyway
	TLS                     // terminated TLS
	HTTP2                   // client connections that speak HTTP/2
	Streams                 // requests over HTTP/2: windows, heads, buffers
	Buffers                 // larger buffers of HTTP/1.x and of WebSockets
	Upstreams               // connections to servers
	Recoding                // decoders and encoders of responses that are scrubbed
	DNS                     // DNS connections and queries
	kinds
)

var kindNames = [kinds]string{"connections", "first_bytes", "tls", "http2", "streams", "buffers", "upstreams", "recoding", "dns"}

// String returns the name of a kind as metrics show it.
func (k Kind) String() string { return kindNames[k] }

// Kinds returns all kinds.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// scarce is the part of what is left that one account may hold once less than a quarter of the budget is left: the
// threshold sinks with every byte that is taken, so that however many hoard, whoever comes next finds some.
const scarce = 16

// What is larger than this leaves an eighth of its account to what is smaller: a box with all the requests and decoders it
// may have still looks up names, makes connections, and is told why it is refused.
const small = 192 << 10

// Budget is what all accounts together may hold. Only [New] makes one. Safe for concurrent use.
type Budget struct {
	total int64
	most  int64 // of one account

	held  atomic.Int64
	kinds [kinds]atomic.Int64

	accounts sync.Map // name → *Account
}

// New returns a budget of total bytes, of which one account may hold most.
func New(total, most int64) *Budget { return &Budget{total: total, most: min(most, total)} }

// Total returns what all accounts together may hold.
func (b *Budget) Total() int64 { return b.total }

// Most returns what one account may hold.
func (b *Budget) Most() int64 { return b.most }

// Held returns what is held for a kind.
func (b *Budget) Held(k Kind) int64 { return b.kinds[k].Load() }

// Account returns the account of a name, made when it is first asked for. Names are the gateway's own, such as IDs of boxes.
func (b *Budget) Account(name string) *Account {
	if a, ok := b.accounts.Load(name); ok {
		return a.(*Account)
	}
	a, _ := b.accounts.LoadOrStore(name, &Account{budget: b})
	return a.(*Account)
}

// Forget drops the account of a name. What it still holds counts until it is released.
func (b *Budget) Forget(name string) { b.accounts.Delete(name) }

// room reports whether an account that holds mine may hold n more when all hold held. While a quarter of the budget is left
// nobody is asked how much is theirs; the last quarter is for those who hold little beside what is left of it.
func (b *Budget) room(mine, held, n int64) bool {
	left := b.total - held - n
	return left >= b.total/4 || left >= 0 && (mine+n)*scarce <= left
}

// take adds n to what all hold, if an account that holds mine may have that.
func (b *Budget) take(mine, n int64) bool {
	for {
		held := b.held.Load()
		if !b.room(mine, held, n) {
			return false
		}
		if b.held.CompareAndSwap(held, held+n) {
			return true
		}
	}
}

// Account is what one box makes the gateway hold. Only [Budget.Account] makes one that grants anything. Safe for concurrent
// use.
type Account struct {
	budget *Budget
	held   atomic.Int64
}

// Held returns what the account holds.
func (a *Account) Held() int64 { return a.held.Load() }

// Acquire reports whether the account may hold n bytes more, and counts them if so: Release must follow.
func (a *Account) Acquire(k Kind, n int) bool {
	if a == nil || a.budget == nil {
		return false
	}
	more := int64(n)
	mine, ok := a.reserve(more)
	if !ok {
		return false
	}
	if !a.budget.take(mine, more) {
		a.held.Add(-more)
		return false
	}
	a.budget.kinds[k].Add(more)
	return true
}

// Release gives back what was acquired.
func (a *Account) Release(k Kind, n int) {
	if a == nil || a.budget == nil || n == 0 {
		return
	}
	a.budget.kinds[k].Add(-int64(n))
	a.budget.held.Add(-int64(n))
	a.held.Add(-int64(n))
}

// reserve adds n to what the account holds if that stays within what one may hold, and returns what it held before.
func (a *Account) reserve(n int64) (before int64, ok bool) {
	most := a.budget.most
	if n > small {
		most -= most / 8
	}
	for {
		mine := a.held.Load()
		if mine+n > most {
			return mine, false
		}
		if a.held.CompareAndSwap(mine, mine+n) {
			return mine, true
		}
	}
}

// Claim is what one piece of work holds of an account. It can grow, and what it holds is given back at once. The zero value
// grants nothing. Safe for concurrent use.
type Claim struct {
	mu      sync.Mutex
	account *Account // nil: nothing is granted
	kind    Kind
	held    int
}

// Open makes c a claim on an account.
func (c *Claim) Open(a *Account, k Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.account, c.kind = a, k
}

// Grow reports whether the claim may hold n bytes more, and counts them if so.
func (c *Claim) Grow(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.account.Acquire(c.kind, n) {
		return false
	}
	c.held += n
	return true
}

// Shrink gives n bytes back, or all there are if they are fewer.
func (c *Claim) Shrink(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, c.held)
	c.held -= n
	c.account.Release(c.kind, n)
}

// Release gives everything back.
func (c *Claim) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked()
}

// Close gives everything back, and grants nothing from now on.
func (c *Claim) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked()
	c.account = nil
}

func (c *Claim) releaseLocked() {
	c.account.Release(c.kind, c.held)
	c.held = 0
}
