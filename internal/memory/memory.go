// Package memory divides the memory that untrusted peers can make the gateway use: buffers, windows, the state of
// connections and of decoders. A [Budget] is the total; each box has an [Account] in it. A piece of work acquires the
// maximum that it may need from its account before it starts, and is refused when the account is exhausted. A box that
// hoards memory is refused new work without affecting others.
//
// The package only counts: acquiring memory is the caller's promise to use no more than that. Acquiring takes no lock.
package memory

import (
	"errors"
	"sync"
	"sync/atomic"
)

// Kind is a use of memory. There are few, so that they can be values of a metric's label.
type Kind uint8

// The kinds.
const (
	Connections Kind = iota // sockets, goroutines and small buffers of connections
	FirstBytes              // first messages beyond the buffer that every connection has
	TLS                     // terminated TLS
	HTTP2                   // client connections that speak HTTP/2
	Streams                 // requests over HTTP/2: windows, heads, buffers
	Buffers                 // larger buffers of HTTP/1.x and of WebSockets
	Upstreams               // connections to servers
	Recoding                // decoders and encoders of scrubbed responses
	DNS                     // DNS connections and queries
	kinds
)

var kindNames = [kinds]string{"connections", "first_bytes", "tls", "http2", "streams", "buffers", "upstreams", "recoding", "dns"}

// String returns the name of a kind as shown in metrics.
func (k Kind) String() string { return kindNames[k] }

// Kinds returns all kinds.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// scarce limits accounts when less than a quarter of the budget is free: an account may then use at most 1/scarce of
// the free memory. The threshold sinks with every acquired byte, so that a new box finds some memory however many
// accounts hoard.
const scarce = 16

// Acquisitions larger than this leave an eighth of the account to smaller ones: a box at its limits of requests and
// decoders can still look up names, make connections, and be sent refusals.
const small = 192 << 10

// Budget is the memory of all accounts together. Create it with [New]. Safe for concurrent use.
type Budget struct {
	total        int64
	accountLimit int64 // limit of one account

	inUse atomic.Int64
	kinds [kinds]atomic.Int64

	accounts sync.Map // name → *Account
}

// New returns a budget of total bytes, with a limit of most bytes for each account.
func New(total, most int64) *Budget { return &Budget{total: total, accountLimit: min(most, total)} }

// Total returns the size of the budget.
func (b *Budget) Total() int64 { return b.total }

// Most returns the limit of one account.
func (b *Budget) Most() int64 { return b.accountLimit }

// InUse returns the bytes in use for a kind.
func (b *Budget) InUse(k Kind) int64 { return b.kinds[k].Load() }

// Used returns the bytes in use for all kinds.
func (b *Budget) Used() int64 { return b.inUse.Load() }

// InUseBy returns the bytes in use by the account of a name, without creating one.
func (b *Budget) InUseBy(name string) int64 {
	if a, ok := b.accounts.Load(name); ok {
		return a.(*Account).InUse()
	}
	return 0
}

// Account returns the account of a name, creating it on first use. Names are the gateway's own, such as IDs of boxes.
func (b *Budget) Account(name string) *Account {
	return b.AccountOf(name, func(all int64) int64 { return all })
}

// AccountOf is [Budget.Account] with a separate limit. For each acquisition limit is called with the limit of one
// account and returns the limit of this one. It must be fast and safe for concurrent use. The budget's total bounds the
// account in any case.
func (b *Budget) AccountOf(name string, limit func(all int64) int64) *Account {
	if a, ok := b.accounts.Load(name); ok {
		return a.(*Account)
	}
	a, _ := b.accounts.LoadOrStore(name, &Account{budget: b, limit: limit})
	return a.(*Account)
}

// Forget removes the account of a name. Its memory counts until it is released.
func (b *Budget) Forget(name string) { b.accounts.Delete(name) }

// fits reports whether an account that uses mine bytes may acquire n more when all accounts use held. While a quarter
// of the budget stays free, any account may. The last quarter is for accounts that use little compared to the free
// memory.
func (b *Budget) fits(mine, held, n int64) bool {
	left := b.total - held - n
	return left >= b.total/4 || left >= 0 && (mine+n)*scarce <= left
}

// acquire adds n to the total in use if an account that uses mine may have it.
func (b *Budget) acquire(mine, n int64) bool {
	for {
		held := b.inUse.Load()
		if !b.fits(mine, held, n) {
			return false
		}
		if b.inUse.CompareAndSwap(held, held+n) {
			return true
		}
	}
}

// Account is the memory of one box. An account that [Budget.Account] did not create refuses every acquisition. Safe for
// concurrent use.
type Account struct {
	budget *Budget
	limit  func(all int64) int64
	inUse  atomic.Int64
}

// InUse returns the bytes in use by the account.
func (a *Account) InUse() int64 { return a.inUse.Load() }

// Limit returns the bytes that the account may use at most. It is 0 for an account that refuses every acquisition.
func (a *Account) Limit() int64 {
	if a == nil || a.budget == nil {
		return 0
	}
	return min(a.limit(a.budget.accountLimit), a.budget.total)
}

// Acquire reports whether the account may use n more bytes, and counts them if so. The caller must release them.
func (a *Account) Acquire(k Kind, n int) bool {
	if a == nil || a.budget == nil {
		return false
	}
	more := int64(n)
	mine, ok := a.reserve(more)
	if !ok {
		return false
	}
	if !a.budget.acquire(mine, more) {
		a.inUse.Add(-more)
		return false
	}
	a.budget.kinds[k].Add(more)
	return true
}

// Release releases n acquired bytes.
func (a *Account) Release(k Kind, n int) {
	if a == nil || a.budget == nil || n == 0 {
		return
	}
	a.budget.kinds[k].Add(-int64(n))
	a.budget.inUse.Add(-int64(n))
	a.inUse.Add(-int64(n))
}

// reserve adds n to the bytes in use by the account if that stays within its limit, and returns the previous value.
func (a *Account) reserve(n int64) (before int64, ok bool) {
	most := a.Limit()
	if n > small {
		most -= most / 8
	}
	for {
		mine := a.inUse.Load()
		if mine+n > most {
			return mine, false
		}
		if a.inUse.CompareAndSwap(mine, mine+n) {
			return mine, true
		}
	}
}

// Claim is the memory of one piece of work. It can grow, and is released as a whole. The zero value refuses to grow.
// Safe for concurrent use.
type Claim struct {
	mu      sync.Mutex
	account *Account // nil: Grow is refused
	kind    Kind
	size    int
}

// Open makes c a claim on an account.
func (c *Claim) Open(a *Account, k Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.account, c.kind = a, k
}

// Grow reports whether the claim may use n more bytes, and counts them if so.
func (c *Claim) Grow(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.account.Acquire(c.kind, n) {
		return false
	}
	c.size += n
	return true
}

// Shrink releases n bytes, or all bytes if the claim has fewer.
func (c *Claim) Shrink(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, c.size)
	c.size -= n
	c.account.Release(c.kind, n)
}

// Release releases all memory of the claim.
func (c *Claim) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked()
}

// Close releases all memory and makes later calls of Grow fail.
func (c *Claim) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked()
	c.account = nil
}

func (c *Claim) releaseLocked() {
	c.account.Release(c.kind, c.size)
	c.size = 0
}

// ErrFull refuses work that exceeds the memory limit of an account.
var ErrFull = errors.New("the box has reached its memory limit in the gateway")

// Doubled is a claim that counts every byte twice, because a message may be buffered for reading and again for writing.
type Doubled struct{ *Claim }

// Grow acquires 2*n more bytes and reports whether they were available.
func (d Doubled) Grow(n int) bool { return d.Claim.Grow(2 * n) }

// Shrink releases 2*n bytes.
func (d Doubled) Shrink(n int) { d.Claim.Shrink(2 * n) }
