package proxy

import (
	"context"

	"boxgate/policy"
)

// upstreams holds the connections to origin servers that wait for another request.
type upstreams struct {
	h1 upstreamPool
	h2 h2Pool
}

// closeBox drops what is kept for a box.
func (u *upstreams) closeBox(box policy.BoxID) {
	u.h1.closeBox(box)
	u.h2.closeBox(box)
}

var (
	alpnHTTP1 = []string{"http/1.1"}
	alpnBoth  = []string{"h2", "http/1.1"}
)

// upstream1 returns an HTTP/1.1 connection for a request that was allowed: one from the pool, else a new one. Over TLS
// the upstream was verified to be the request's name.
func (s *session) upstream1(ctx context.Context, r *ruling) (*upstream, error) {
	key := keyOf(s, r)
	if u := s.p.upstreams.h1.take(key, s.box.Policy.Load()); u != nil {
		return u, nil
	}
	if !s.secure {
		conn, err := s.p.dial(ctx, s.box, r.target())
		if err != nil {
			return nil, err
		}
		return newUpstream(key, conn, s.box)
	}
	conn, err := s.p.dialTLS(ctx, s.box, r.target(), alpnHTTP1)
	if err != nil {
		return nil, err
	}
	return newUpstream(key, conn, s.box)
}
