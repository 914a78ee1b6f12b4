package h2c

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"boxgate/relay/h2/upstream"
)

// goneCheck is how often a request that waits for a connection checks whether its visitor is still connected.
const goneCheck = time.Second

// attempt is one attempt to connect to an application. It belongs to all requests that wait for it, not to the one that began
// it, and is cancelled when the last of them stops waiting.
type attempt struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the attempt has ended
	err    error         // valid once done is closed

	// Guarded by the pool's mu.
	waiters int
	made    *shared // counts the attempt as a user while waiters > 0; nil: no connection was made
	first   bool    // the reserved stream has not been taken by a request yet
}

// acquireConn returns an open or a new connection with a stream reserved on it. Requests that need a new connection share one
// attempt and its failure. The time limit covers all attempts together.
func (p *Pool[K]) acquireConn(ctx context.Context, key K, find bool, dial Dial, gone func() error) (*shared, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience(find))
	defer cancel()
	for {
		s, a, err := p.reserve(key, find, dial)
		if a == nil {
			return s, err
		}
		err = a.wait(ctx, gone)
		if s := p.depart(key, a, err == nil); s != nil {
			return s, nil
		}
		if err != nil && (find || !errors.Is(err, ErrOther)) {
			return nil, err
		}
	}
}

// patience is the time limit of a request that waits for a connection, and of an attempt.
func (p *Pool[K]) patience(find bool) time.Duration {
	if find {
		return p.DialTimeout + probeTime
	}
	return p.DialTimeout
}

// wait waits until the attempt has ended and returns its error, or the reason why the request stops waiting.
func (a *attempt) wait(ctx context.Context, gone func() error) error {
	check := time.NewTicker(goneCheck)
	defer check.Stop()
	for {
		select {
		case <-a.done:
			return a.err
		case <-ctx.Done():
			return ctx.Err()
		case <-check.C:
			if err := gone(); err != nil {
				return err
			}
		}
	}
}

// beginLocked begins an attempt.
func (p *Pool[K]) beginLocked(key K, find bool, dial Dial) *attempt {
	ctx, cancel := context.WithTimeout(context.Background(), p.patience(find))
	a := &attempt{cancel: cancel, done: make(chan struct{})}
	go func() {
		var s *shared
		var speaks bool
		var err error
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic in connecting to an application: %T", v)
			}
			if p.connected(key, a, s, speaks, err) {
				s.conn.Close()
			}
		}()
		s, speaks, err = p.connect(ctx, key, find, dial)
	}()
	return a
}

// connect makes a connection with a stream reserved on it. If find is set, it first finds out whether the application speaks
// HTTP/2.
func (p *Pool[K]) connect(ctx context.Context, key K, find bool, dial Dial) (s *shared, speaks bool, err error) {
	if find && !p.known(key) {
		if speaks, err = probe(ctx, dial); err != nil {
			return nil, false, err
		}
		if !speaks {
			return nil, false, ErrOther
		}
	}
	conn, err := dial(ctx)
	if err != nil {
		return nil, false, err
	}
	made := &shared{local: conn.LocalAddr(), remote: conn.RemoteAddr(), users: 1}
	made.leave = func(used bool) { p.releaseConn(key, made, used) }
	made.conn = upstream.NewWindow(conn, func() { p.ended(key, made) }, Window)
	if !made.conn.Reserve() {
		made.conn.Close()
		return nil, false, net.ErrClosed
	}
	return made, speaks, nil
}

func (p *Pool[K]) known(key K) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.portLocked(key).speaks
}

// probe connects and reports whether the application speaks HTTP/2.
func probe(ctx context.Context, dial Dial) (bool, error) {
	conn, err := dial(ctx)
	if err != nil {
		return false, err
	}
	found := speaks(ctx, conn)
	return found, ctx.Err()
}

// connected ends an attempt. It reports whether the connection is unwanted because every request has stopped waiting: the
// caller then closes it.
func (p *Pool[K]) connected(key K, a *attempt, s *shared, speaks bool, err error) (unwanted bool) {
	a.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(a.done)
	a.err = err
	at := p.portLocked(key)
	if at.dialing == a {
		at.dialing = nil
	}
	switch {
	case errors.Is(err, ErrOther):
		at.other = time.Now().Add(otherTime)
	case a.waiters == 0:
		unwanted = err == nil
	case err != nil:
		at.speaks = false
	default:
		a.made, a.first = s, true
		if !s.gone {
			at.speaks = at.speaks || speaks
			at.conns = append(at.conns, s)
		}
	}
	p.tidyLocked(key)
	return unwanted
}

// depart ends a request's wait for an attempt. It returns the new connection with a stream reserved, or nil if there is none
// or it is full.
func (p *Pool[K]) depart(key K, a *attempt, made bool) (s *shared) {
	p.mu.Lock()
	if made && (a.first || a.made.conn.Reserve()) {
		s, a.first = a.made, false
		p.useLocked(s)
	}
	a.waiters--
	left := a.waiters == 0 && p.leftLocked(key, a)
	p.mu.Unlock()
	if left {
		a.made.conn.Close()
	}
	return s
}

// leftLocked cancels an attempt whose last request has stopped waiting, and reports whether the caller must close its
// connection.
func (p *Pool[K]) leftLocked(key K, a *attempt) (full bool) {
	a.cancel()
	if at := p.portLocked(key); at.dialing == a {
		at.dialing = nil
	}
	if a.made != nil {
		if a.first {
			a.first = false
			a.made.conn.Release()
		}
		full = p.restLocked(key, a.made)
	}
	p.tidyLocked(key)
	return full
}
