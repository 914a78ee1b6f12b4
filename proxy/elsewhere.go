package proxy

import (
	"context"
	"net"
	"sync"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy/name"
	"boxgate/proxy/contain"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
	"boxgate/proxy/tunnel"
)

// This file passes connections on to another address of a name, when the one that the client chose does not accept. That
// one is tried by a tunnel, which has no goroutine; the others are tried beside it, and whichever accepts first is taken.

// detour is the search for another address of a connection that a tunnel is to pass on.
type detour struct {
	attempt  *tunnel.Tunnel // at the address that the client chose
	deadline time.Time      // of all attempts

	mu     sync.Mutex
	begun  bool
	over   bool
	taken  bool               // another address was
	failed error              // the attempt
	opened bool               // the attempt has succeeded
	stop   context.CancelFunc // ends the search
}

// limit has the search end with the attempt's success: what it has left would be of no use.
func (d *detour) limit(stop context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop = stop; d.opened {
		stop()
	}
}

// succeeded ends the search.
func (d *detour) succeeded() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened = true; d.stop != nil {
		d.stop()
	}
}

// hasFailed reports whether the attempt has.
func (d *detour) hasFailed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed != nil
}

// Slow tries the other addresses of the name.
func (o *owner) Slow() { (*conn)(o).goElsewhere() }

// Failed tries the other addresses of the name, unless that is being done, and else refuses the connection.
func (o *owner) Failed(err error) {
	c := (*conn)(o)
	d := &c.detour
	d.mu.Lock()
	d.failed = err
	begun, over, taken := d.begun, d.over, d.taken
	d.mu.Unlock()
	switch {
	case !begun:
		c.goElsewhere()
	case over && !taken:
		c.unreachable(err)
	}
}

// goElsewhere connects to one of the other addresses, and goes on there if the attempt has not succeeded by then. It is done
// once.
func (c *conn) goElsewhere() {
	d := &c.detour
	d.mu.Lock()
	begun := d.begun
	d.begun = true
	d.mu.Unlock()
	if begun {
		return
	}
	up := c.dialOthers()
	taken := up != nil && d.attempt.Yield()
	d.mu.Lock()
	d.over, d.taken = true, taken
	failed := d.failed
	d.mu.Unlock()
	switch {
	case taken:
		c.goOnAt(up)
	case up != nil: // the attempt has succeeded, or the connection was cut
		socket.Abort(up)
	case failed != nil:
		c.unreachable(failed)
	}
}

// dialOthers connects to one of the other addresses; nil: none accepts.
func (c *conn) dialOthers() (up net.Conn) {
	defer contain.Panic(c.p.cfg.Log, c.box.ID, func() {})
	rt, ok := c.live.Passing()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithDeadline(c.ctx, c.detour.deadline)
	defer cancel()
	c.detour.limit(cancel)
	up, err := c.p.core.Origins.DialOthers(ctx, c.box, c.target(rt), rt.Known.Dialled, c.detour.hasFailed)
	if err != nil {
		return nil
	}
	return up
}

// goOnAt passes the connection on to a server that is connected, in the place of the attempt's.
func (c *conn) goOnAt(up net.Conn) {
	c.own.Run(func() {
		rt, ok := c.live.Passing()
		if !c.live.Reclaim(c.tcp) || !ok { // it was cut
			socket.Abort(up)
			c.refuse(peek.Other, name.ReasonUnreachable)
			return
		}
		c.reached(c.spliced.first, rt, up)
	})
}

// unreachable refuses the connection: its server does not accept.
func (c *conn) unreachable(err error) {
	c.own.Run(func() {
		c.failed(c.spliced.first.Kind, &problem.Upstream{Reason: name.ReasonUnreachable, Name: c.spliced.name, Err: err})
	})
}
