package pool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrPlain reports a server that speaks HTTP/1.1 only.
var ErrPlain = errors.New("the server does not speak HTTP/2")

// Shared is a connection that carries several requests at a time.
type Shared[J any] interface {
	Conn[J]
	// Reserve reserves a request, or returns false. A reserved request is made or cancelled.
	Reserve() bool
	// Cancel cancels a reservation.
	Cancel()
}

// Order is a request's order for a connection.
type Order[K comparable, J any] struct {
	By func() J // returns the present judgement; it does not block
	// Cost is the memory for dialling, as in [Pool.Acquire].
	Cost int
	// Insists is set if the server is taken to speak HTTP/2 although the pool remembers that it does not.
	Insists bool
	// Dial makes a connection for the place, which it leaves to the caller. A [Shared] one has a request reserved. speaks is set if the
	// server is known to speak HTTP/2. It is called for other requests too, so it must not depend on this one.
	Dial func(ctx context.Context, pl *Place[K, J], speaks bool) (Conn[J], error)
	// Patience limits the wait, and each attempt; 0: no limit.
	Patience time.Duration
	// Gone is called every second, and returns an error if the request no longer waits; nil: it waits until its context ends.
	Gone func() error
}

// goneCheck is how often a request that waits calls Gone.
const goneCheck = time.Second

// Panic is the failure of an attempt that panicked with a value.
type Panic struct {
	Value    any
	reported bool
}

// Reported reports whether the pool has a [Pool.Panicked], which was called.
func (p *Panic) Reported() bool { return p.reported }

func (p *Panic) Error() string { return fmt.Sprintf("panic in connecting to a server: %T", p.Value) }

// attempt is one attempt to connect to a server. It belongs to all requests that wait for it, not to the one that began it, and is
// cancelled when the last of them stops waiting.
type attempt[K comparable, J any] struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the attempt has ended
	err    error         // valid once done is closed

	// Guarded by the pool's mu.
	place   *Place[K, J]
	waiters int
	made    bool // the place has a connection; the attempt counts as one of its users while waiters > 0
	first   bool // no request has taken the reserved request of a shared connection, or the only one of another
	owned   bool // the request that began the attempt still waits: first is reserved for it
}

// Share returns an open connection of a key with a request reserved, or nil. plain reports that the server is known to speak HTTP/1.1
// only. It does not block.
func (p *Pool[K, J]) Share(key K, by J) (up Shared[J], plain bool) {
	p.mu.Lock()
	defer p.unlock()
	at := p.ports[key]
	if at == nil {
		return nil, false
	}
	if up := p.shareLocked(at, by); up != nil {
		return up, false
	}
	return nil, at.isPlain()
}

// shareLocked drops connections that the request may not use: their other requests are judged, and cut, separately.
func (p *Pool[K, J]) shareLocked(at *port[K, J], by J) Shared[J] {
	for i := 0; i < len(at.shared); {
		pl := at.shared[i]
		switch {
		case !pl.shared.Usable(by):
			p.dropLocked(pl)
		case pl.shared.Reserve():
			p.wakeLocked(pl)
			pl.users++
			return pl.shared
		case pl.users == 0: // accepts no requests although unused: the server is about to close it
			p.dropLocked(pl)
		default:
			i++
		}
	}
	return nil
}

// Leave ends one request's use of a shared connection. used reports whether the request was made; if not, its reservation is cancelled.
func (pl *Place[K, J]) Leave(used bool) {
	if !used {
		pl.shared.Cancel()
	}
	pl.pool.mu.Lock()
	defer pl.pool.unlock()
	pl.pool.leaveLocked(pl)
}

func (p *Pool[K, J]) leaveLocked(pl *Place[K, J]) {
	if pl.users--; pl.users == 0 && pl.held {
		p.restLocked(pl)
	}
}

// Get returns a connection for a request: an open shared one with a request reserved, or a new one. Requests that need the same new
// connection share one attempt. The request that began it always gets the connection, and must judge it, as Usable is not asked: otherwise
// others could take it every time, and a server would be dialled without end while no connection is usable. Get returns [ErrPlain] if the
// server is known to speak HTTP/1.1 only.
func (p *Pool[K, J]) Get(ctx context.Context, key K, o *Order[K, J]) (Conn[J], error) {
	if o.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Patience)
		defer cancel()
	}
	for {
		up, a, own, err := p.reserve(key, o)
		if a == nil {
			return up, err
		}
		ended, err := a.wait(ctx, o.Gone)
		if up := p.depart(a, o.By(), own, err == nil); up != nil {
			return up, nil
		}
		if err != nil && (own || !ended || p.Retry == nil || !p.Retry(err)) {
			return nil, err
		}
	}
}

// reserve returns an open connection, or the attempt that the request must wait for. own is set if the request began it.
func (p *Pool[K, J]) reserve(key K, o *Order[K, J]) (up Conn[J], a *attempt[K, J], own bool, err error) {
	p.mu.Lock()
	defer p.unlock()
	if at := p.ports[key]; at != nil {
		if up := p.shareLocked(at, o.By()); up != nil {
			return up, nil, false, nil
		}
		switch {
		case at.isPlain() && !o.Insists:
			return nil, nil, false, ErrPlain
		case at.dialing != nil:
			at.dialing.waiters++
			return nil, at.dialing, false, nil
		}
	}
	pl, err := p.acquireLocked(key, o.Cost)
	if err != nil {
		return nil, nil, false, err
	}
	return nil, p.beginLocked(pl, o), true, nil
}

// beginLocked begins an attempt with one waiting request.
func (p *Pool[K, J]) beginLocked(pl *Place[K, J], o *Order[K, J]) *attempt[K, J] {
	a := &attempt[K, J]{done: make(chan struct{}), place: pl, waiters: 1, owned: true}
	ctx, cancel := context.WithCancel(context.Background())
	if a.cancel = cancel; o.Patience > 0 {
		ctx, a.cancel = context.WithTimeout(ctx, o.Patience)
	}
	pl.port.dialing = a
	dial, speaks, key := o.Dial, pl.port.speaks, pl.key
	go func() {
		defer cancel()
		var made Conn[J]
		var err error
		defer func() {
			if v := recover(); v != nil {
				if p.Panicked != nil {
					p.Panicked(key, v)
				}
				err = &Panic{v, p.Panicked != nil}
			}
			p.connected(a, made, err)
		}()
		made, err = dial(ctx, pl, speaks)
	}()
	return a
}

// wait waits until the attempt has ended and returns its error, or the reason why the request stops waiting.
func (a *attempt[K, J]) wait(ctx context.Context, gone func() error) (ended bool, err error) {
	var check <-chan time.Time
	if gone != nil {
		ticker := time.NewTicker(goneCheck)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		select {
		case <-a.done:
			return true, a.err
		case <-ctx.Done():
			return false, ctx.Err()
		case <-check:
			if err := gone(); err != nil {
				return false, err
			}
		}
	}
}

// connected ends an attempt. It closes the connection if all requests have stopped waiting.
func (p *Pool[K, J]) connected(a *attempt[K, J], made Conn[J], err error) {
	a.cancel()
	p.mu.Lock()
	defer p.unlock()
	defer close(a.done)
	pl := a.place
	if pl.port.dialing == a {
		pl.port.dialing = nil
	}
	if a.err = err; err == nil {
		a.err = p.addLocked(pl, made)
	}
	switch {
	case errors.Is(err, ErrPlain):
		p.plainLocked(pl.port)
		p.releaseLocked(pl)
	case err != nil:
		pl.port.speaks = false
		p.releaseLocked(pl)
	case a.err != nil, a.waiters == 0:
		p.dropLocked(pl)
	default:
		a.made, a.first = true, true
		pl.users++
	}
}

// Add puts a connection that was dialled for the place into use, and notes the protocol of its server. A [Shared] one, which has a
// request reserved for the caller, can be shared from now on. After an error, [ErrClosed] or [ErrMemory], the connection is closed and
// the place released.
func (pl *Place[K, J]) Add(made Conn[J]) error {
	pl.pool.mu.Lock()
	defer pl.pool.unlock()
	pl.users++
	err := pl.pool.addLocked(pl, made)
	if err != nil {
		pl.pool.dropLocked(pl)
	}
	return err
}

func (p *Pool[K, J]) addLocked(pl *Place[K, J], made Conn[J]) error {
	at := pl.port
	pl.conn = made
	shared, ok := made.(Shared[J])
	switch {
	case p.closed:
		return ErrClosed
	case !ok:
		p.plainLocked(at)
	default:
		pl.shared, at.plain = shared, false
		if pl.held { // the server may have closed it already
			at.shared, at.speaks = append(at.shared, pl), true
		}
	}
	return p.useLocked(pl)
}

func (p *Pool[K, J]) plainLocked(at *port[K, J]) {
	at.plain, at.speaks, at.until = true, false, time.Time{}
	if p.Plain > 0 {
		at.until = time.Now().Add(p.Plain)
	}
}

// depart ends a request's wait for an attempt. It returns the new connection with a request reserved, or nil if the attempt has failed or
// the connection is full. own is set if the request began the attempt.
func (p *Pool[K, J]) depart(a *attempt[K, J], by J, own, made bool) (up Conn[J]) {
	p.mu.Lock()
	defer p.unlock()
	if made {
		up = p.takeLocked(a, by, own)
	}
	a.owned = a.owned && !own
	if a.waiters--; a.waiters == 0 {
		p.abandonLocked(a)
	}
	return up
}

func (p *Pool[K, J]) takeLocked(a *attempt[K, J], by J, own bool) Conn[J] {
	pl := a.place
	first := a.first && a.owned == own
	switch {
	case pl.shared == nil && !first, pl.shared != nil && !own && !pl.shared.Usable(by):
		return nil
	case first:
		a.first = false
	case !pl.shared.Reserve():
		return nil
	}
	p.wakeLocked(pl)
	pl.users++
	return pl.conn
}

// abandonLocked cancels an attempt whose last request has stopped waiting.
func (p *Pool[K, J]) abandonLocked(a *attempt[K, J]) {
	a.cancel()
	pl := a.place
	if pl.port.dialing == a {
		pl.port.dialing = nil
	}
	if !a.made {
		return
	}
	if a.first && pl.shared != nil {
		pl.shared.Cancel()
	}
	a.first = false
	if pl.shared != nil || pl.users == 1 {
		p.leaveLocked(pl)
	}
}
