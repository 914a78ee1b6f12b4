package proxy

import (
	"context"
	"net"
	"sync"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy/name"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/proxy/tunnel"
)

// This file moves a connection to another address of its name when the address that the client chose does not accept. A
// tunnel, which needs no goroutine, connects to the chosen address; the other addresses are dialled in parallel, and the
// first that accepts wins.

// detour is the state of the search for another address while a tunnel connects to the first.
type detour struct {
	attempt  *tunnel.Tunnel // connects to the address that the client chose
	deadline time.Time      // of all attempts together

	mu           sync.Mutex
	started      bool               // the search has started
	ended        bool               // the search has ended
	switched     bool               // another address is used
	attemptErr   error              // error of the attempt
	attemptOK    bool               // the attempt succeeded
	cancelSearch context.CancelFunc // cancels the search
}

// setCancel sets the function that cancels the search, and calls it if the attempt has already succeeded.
func (d *detour) setCancel(stop context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancelSearch = stop; d.attemptOK {
		stop()
	}
}

// stopSearch cancels the search.
func (d *detour) stopSearch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attemptOK = true; d.cancelSearch != nil {
		d.cancelSearch()
	}
}

// hasFailed reports whether the attempt failed.
func (d *detour) hasFailed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.attemptErr != nil
}

// Slow tries the other addresses of the name, while the attempt continues.
func (o *owner) Slow() { (*conn)(o).failOver() }

// Failed tries the other addresses of the name, or refuses the connection if they failed as well.
func (o *owner) Failed(err error) {
	c := (*conn)(o)
	d := &c.detour
	d.mu.Lock()
	d.attemptErr = err
	started, ended, switched := d.started, d.ended, d.switched
	d.mu.Unlock()
	switch {
	case !started:
		c.failOver()
	case ended && !switched:
		c.refuseUnreachable(err)
	}
}

// failOver connects to one of the other addresses, and uses it unless the attempt has succeeded first. It runs once per
// connection.
func (c *conn) failOver() {
	d := &c.detour
	d.mu.Lock()
	started := d.started
	d.started = true
	d.mu.Unlock()
	if started {
		return
	}
	up := c.dialOthers()
	switched := up != nil && d.attempt.Yield()
	d.mu.Lock()
	d.ended, d.switched = true, switched
	attemptErr := d.attemptErr
	d.mu.Unlock()
	switch {
	case switched:
		c.continueAt(up)
	case up != nil: // the attempt succeeded, or the connection was cut
		socket.Abort(up)
	case attemptErr != nil:
		c.refuseUnreachable(attemptErr)
	}
}

// dialOthers connects to one of the other addresses. It returns nil if all refuse.
func (c *conn) dialOthers() (up net.Conn) {
	defer recovery.Panic(c.p.cfg.Log, c.box.ID, func() {})
	rt, ok := c.live.Route()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithDeadline(c.ctx, c.detour.deadline)
	defer cancel()
	c.detour.setCancel(cancel)
	up, err := c.p.core.Origins.DialOthers(ctx, c.box, c.target(rt), rt.Known.Dialled, c.detour.hasFailed)
	if err != nil {
		return nil
	}
	return up
}

// continueAt continues the connection with a connected server instead of the attempt's.
func (c *conn) continueAt(up net.Conn) {
	c.own.Run(func() {
		rt, ok := c.live.Route()
		if !c.live.Reclaim(c.tcp) || !ok { // it was cut
			socket.Abort(up)
			c.refuse(peek.Other, name.ReasonUnreachable)
			return
		}
		c.forwardTo(c.spliced.first, rt, up)
	})
}

// refuseUnreachable refuses the connection because no address of its server accepts.
func (c *conn) refuseUnreachable(err error) {
	c.own.Run(func() {
		c.refuseFailed(c.spliced.first.Kind, &problem.Upstream{Reason: name.ReasonUnreachable, Name: c.spliced.name, Err: err})
	})
}
