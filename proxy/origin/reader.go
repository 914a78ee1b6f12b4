package origin

import (
	"context"
	"net"
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

// wait is the wait of a client for a response ([relay.Expecter]).
type wait struct {
	conn net.Conn
	ctx  context.Context
	gone func() bool // reports whether the client has disconnected
	// again means that the request can be sent again: then the response of a server that seems to have vanished is not waited for.
	again bool
}

// ErrVanished ends a read from a server that acknowledges nothing of what was sent to it.
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

// vanished returns an error if the server acknowledges nothing any more, or has not for a moment and the request can be sent again.
func (w *wait) vanished() error {
	switch silent := socket.UnansweredBy(w.conn); {
	case silent >= socket.LostAfter, w.again && silent >= socket.VanishedAfter:
		return ErrVanished
	}
	return nil
}
