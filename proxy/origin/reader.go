package origin

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// upstreamTick is how often a read from the upstream checks that the client is still connected.
const upstreamTick = 5 * time.Second

// clientAwareReader reads from an upstream while its client is connected. A deadline that an earlier exchange set is left
// to expire: setting one for each would cost more.
type clientAwareReader struct {
	conn  net.Conn
	ctx   context.Context
	gone  func() bool
	check time.Time // when to look at the client
	armed bool      // a read deadline is set that has not been seen to expire
}

// ErrClientGone ends a read from a server because the client disconnected.
var ErrClientGone = errors.New("the client disconnected")

// begin must be called before the reads of each exchange.
func (r *clientAwareReader) begin(ctx context.Context, gone func() bool) {
	r.ctx, r.gone, r.check = ctx, gone, time.Now().Add(upstreamTick)
	if !r.armed {
		r.arm()
	}
}

func (r *clientAwareReader) arm() {
	_ = r.conn.SetReadDeadline(r.check)
	r.armed = true
}

func (r *clientAwareReader) Read(b []byte) (int, error) {
	for {
		n, err := r.conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		if now := time.Now(); !now.Before(r.check) {
			if r.gone() {
				return 0, ErrClientGone
			}
			r.check = now.Add(upstreamTick)
		}
		r.arm()
	}
}
