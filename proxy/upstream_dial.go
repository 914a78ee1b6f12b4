package proxy

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"boxgate/policy"
)

// upstreams holds the connections to origin servers, box by box: what one box does with its own is nothing to another.
// The zero value is empty. Safe for concurrent use.
type upstreams struct {
	open    atomic.Int64 // connections, of all boxes
	sharers atomic.Int64 // boxes that have a pool

	mu    sync.RWMutex
	boxes map[policy.BoxID]*upstreamPool
}

// upstreamPool returns the pool of the session's box. CloseBox cuts the sessions before it drops the pool, and no session
// that was cut makes a new one.
func (s *session) upstreamPool() (*upstreamPool, error) {
	all := &s.p.upstreams
	all.mu.RLock()
	pool := all.boxes[s.box.ID]
	all.mu.RUnlock()
	if pool != nil {
		return pool, nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if cut := s.live.denied(); cut != nil {
		return nil, cut
	}
	if all.boxes[s.box.ID] == nil {
		if all.boxes == nil {
			all.boxes = map[policy.BoxID]*upstreamPool{}
		}
		pool := newUpstreamPool(s.p.cfg.MaxUpstreams, s.usage.Memory)
		pool.all, pool.total = all, s.p.cfg.MaxAllUpstreams
		all.boxes[s.box.ID] = pool
		all.sharers.Add(1)
	}
	return all.boxes[s.box.ID], nil
}

// closeBox drops what is kept for a box.
func (u *upstreams) closeBox(box policy.BoxID) {
	u.mu.Lock()
	pool := u.boxes[box]
	delete(u.boxes, box)
	u.mu.Unlock()
	if pool != nil {
		u.sharers.Add(-1)
		pool.close()
	}
}

// close drops what is kept for any box.
func (u *upstreams) close() {
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

// upstream1 returns an HTTP/1.1 connection for a request that was allowed: one from the pool, else a new one. Over TLS
// the upstream was verified to be the request's name.
func (s *session) upstream1(ctx context.Context, r *ruling) (*upstream, error) {
	pool, err := s.upstreamPool()
	if err != nil {
		return nil, err
	}
	key := keyOf(s, r)
	if u := pool.take(key, s.box.Policy.Load()); u != nil {
		return u, nil
	}
	pl, err := pool.acquire(key)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	defer func() {
		if conn == nil {
			pl.release()
		}
	}()
	if conn, err = s.dial1(ctx, r); err != nil {
		return nil, err
	}
	return newUpstream(pl, conn, s.box)
}

func (s *session) dial1(ctx context.Context, r *ruling) (net.Conn, error) {
	if !s.secure {
		return s.p.dial(ctx, s.box, r.target())
	}
	conn, err := s.p.dialTLS(ctx, s.box, r.target(), alpnHTTP1)
	if err != nil {
		return nil, err // not conn, a nil of another type
	}
	return conn, nil
}
