package origin

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"boxgate/policy"
)

// allPools contains the pools of connections to origin servers, one per box: no box can affect the connections of another.
// The zero value is empty. Safe for concurrent use.
type allPools struct {
	open    atomic.Int64 // connections of all boxes
	sharers atomic.Int64 // boxes that have a pool

	mu    sync.RWMutex
	boxes map[policy.BoxID]*boxPool
}

// poolOf returns the pool of a client's box, creating it on first use. A box's clients are denied before its pool is
// closed, and no pool is created for a denied client.
func (p *Origins) poolOf(who Client) (*boxPool, error) {
	all := &p.pools
	if pool := all.find(who.Box.ID); pool != nil {
		return pool, nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if cut := who.Denied(); cut != nil {
		return nil, cut
	}
	if all.boxes[who.Box.ID] == nil {
		if all.boxes == nil {
			all.boxes = map[policy.BoxID]*boxPool{}
		}
		pool := newBoxPool(who.Box, p.cfg.MaxPerBox, who.Memory)
		pool.all, pool.total = all, p.cfg.MaxAll
		if note := p.cfg.Panicked; note != nil {
			pool.conns.Panicked = func(_ key, v any) { note(pool.box.ID, v) }
		}
		all.boxes[who.Box.ID] = pool
		all.sharers.Add(1)
	}
	return all.boxes[who.Box.ID], nil
}

// find returns the pool of a box, or nil.
func (u *allPools) find(box policy.BoxID) *boxPool {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.boxes[box]
}

// closeBox drops the state of a box.
func (u *allPools) closeBox(box policy.BoxID) {
	u.mu.Lock()
	pool := u.boxes[box]
	delete(u.boxes, box)
	u.mu.Unlock()
	if pool != nil {
		u.sharers.Add(-1)
		pool.conns.Close()
	}
}

// Stats are numbers of connections to origin servers.
type Stats struct {
	Open  int // in use or idle
	Idle  int // idle ones
	Hosts int // servers with connections or a remembered protocol
}

// close drops the state of all boxes.
func (u *allPools) close() {
	u.mu.RLock()
	boxes := slices.Collect(maps.Keys(u.boxes))
	u.mu.RUnlock()
	for _, box := range boxes {
		u.closeBox(box)
	}
}

var (
	alpnHTTP1 = []string{"http/1.1"}
	alpnBoth  = []string{"h2", "http/1.1"}
)

// HTTP1 returns an HTTP/1.1 connection for a route, from the pool or newly dialled. Over TLS the server's certificate was
// verified for the target's name. Errors are of type *[policy.DeniedError] or *[problem.Upstream].
func (p *Origins) HTTP1(ctx context.Context, who Client, to *Target) (*Conn, error) {
	pool, err := p.poolOf(who)
	if err != nil {
		return nil, err
	}
	if u := pool.acquireIdle(to.key(), who.Box.Policy.Load()); u != nil {
		return u, nil
	}
	return p.fresh(ctx, pool, who, *to)
}

// Fresh1 is [Origins.HTTP1] without the pool, for a request that failed on a kept connection: other kept ones were probably
// closed as well.
func (p *Origins) Fresh1(ctx context.Context, who Client, to *Target) (*Conn, error) {
	pool, err := p.poolOf(who)
	if err != nil {
		return nil, err
	}
	return p.fresh(ctx, pool, who, *to)
}

// acquireIdle returns the most recently used idle HTTP/1.1 connection that is still usable, or nil.
func (p *boxPool) acquireIdle(key key, c *policy.Compiled) *Conn {
	u, ok := p.conns.Take(key, c).(*Conn)
	if !ok {
		return nil
	}
	return u
}

// fresh dials an HTTP/1.1 connection.
func (p *Origins) fresh(ctx context.Context, pool *boxPool, who Client, to Target) (u *Conn, err error) {
	pl, err := pool.conns.Acquire(to.key(), to.key().cost())
	if err != nil {
		return nil, refused(to.key(), err)
	}
	defer func() {
		if u == nil {
			pl.Release()
		}
	}()
	conn, err := p.dial1(ctx, who.Box, to)
	if err != nil {
		return nil, err
	}
	made, err := newUpstream(pool, pl, conn, who.Box)
	if err != nil {
		return nil, err
	}
	if err := pl.Fill(made); err != nil {
		made.Close()
		return nil, refused(to.key(), err)
	}
	return made, nil
}

func (p *Origins) dial1(ctx context.Context, box *policy.Box, to Target) (net.Conn, error) {
	if !to.secure {
		conn, err := p.Dial(ctx, box, to)
		return direct(conn), err
	}
	conn, err := p.DialTLS(ctx, box, to, alpnHTTP1)
	if err != nil {
		return nil, err // not conn, a nil pointer in a non-nil interface
	}
	return conn, nil
}
