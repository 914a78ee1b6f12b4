package origin

import (
	"context"
	"net"
	"time"

	"boxgate/internal/socket"
	"boxgate/proxy/problem"
	"boxgate/relay"
)

// A read from a server checks the client after firstTick, then at intervals that double up to upstreamTick.
const (
	firstTick    = 500 * time.Millisecond
	upstreamTick = 5 * time.Second
)

// wait is the wait of a client for a response ([relay.Expecter]).
type wait struct {
	conn net.Conn
	ctx  context.Context
	gone func() bool // reports whether the client has disconnected
	// again is set if the request can be sent again: the wait then ends early if the server seems to have vanished.
	again bool
}

// ErrVanished ends a read from a server that no longer acknowledges the data sent to it.
var ErrVanished = error(problem.Fixed("the server acknowledges nothing any more"))

// Interrupted implements [relay.Expecter].
func (w *wait) Interrupted() error { return w.ctx.Err() }

// Expected implements [relay.Expecter].
func (w *wait) Expected(last time.Duration) (next time.Duration, err error) {
	if w.gone() {
		return 0, relay.ErrClientGone
	}
	next = min(2*last, upstreamTick)
	if w.again {
		next = min(next, socket.VanishedLook)
	}
	return next, w.vanished()
}

// vanished returns [ErrVanished] if the server has not acknowledged data for [socket.LostAfter] or, if the request can be sent
// again, for [socket.VanishedAfter].
func (w *wait) vanished() error {
	switch silent := socket.UnansweredBy(w.conn); {
	case silent >= socket.LostAfter, w.again && silent >= socket.VanishedAfter:
		return ErrVanished
	}
	return nil
}
