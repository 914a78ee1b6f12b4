package origin

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"boxgate/internal/socket"
	"boxgate/proxy/problem"
	"boxgate/relay"
)

// A read from a server looks at the client after firstTick, and then after twice as long each time, up to upstreamTick.
const (
	firstTick    = 500 * time.Millisecond
	upstreamTick = 5 * time.Second
)

// clientAwareReader reads from an upstream while its client is connected. A deadline that an earlier exchange set is left
// to expire: setting one for each would cost more.
type clientAwareReader struct {
	conn  net.Conn
	ctx   context.Context
	gone  func() bool
	check time.Time     // when to look at the client
	wait  time.Duration // between looks
	armed bool          // a read deadline is set that has not been seen to expire
	until time.Time     // that deadline
	// again says that what was sent can be sent again: then a server that seems to have vanished is not waited for.
	again bool
}

// ErrVanished ends a read from a server that acknowledges nothing of what was sent to it.
var ErrVanished = error(problem.Fixed("the server acknowledges nothing any more"))

// begin must be called before the reads of each exchange.
func (r *clientAwareReader) begin(ctx context.Context, gone func() bool) {
	r.ctx, r.gone, r.check, r.wait, r.again = ctx, gone, time.Now().Add(firstTick), firstTick, false
	if !r.armed || r.until.After(r.check) {
		r.arm()
	}
}

// beginAgain says that until the next begin the wait is for a response to what can be sent again, on a connection that was
// kept: perhaps its server has vanished meanwhile.
func (r *clientAwareReader) beginAgain() { r.again = true }

func (r *clientAwareReader) arm() {
	_ = r.conn.SetReadDeadline(r.check)
	r.armed, r.until = true, r.check
}

// vanished returns an error if the server acknowledges nothing any more, or has not for a moment and is asked elsewhere.
func (r *clientAwareReader) vanished() error {
	switch silent := socket.UnansweredBy(r.conn); {
	case silent >= socket.LostAfter, r.again && silent >= socket.VanishedAfter:
		return ErrVanished
	}
	return nil
}

// tick is how long to wait for the next look.
func (r *clientAwareReader) tick() time.Duration {
	r.wait = min(2*r.wait, upstreamTick)
	if r.again {
		r.wait = min(r.wait, socket.VanishedLook)
	}
	return r.wait
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
				return 0, relay.ErrClientGone
			}
			if err := r.vanished(); err != nil {
				return 0, err
			}
			r.check = now.Add(r.tick())
		}
		r.arm()
	}
}
