package load

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"boxgate/bench/proc"
)

// opening is the number of connections opened concurrently.
const opening = 16

// idle opens connections, sends one request over each, and reads the memory of the program under test at every step
// after a rest.
func (g *generator) idle() (Result, error) {
	var held []net.Conn
	defer func() { closeAbruptly(held) }()
	steps := []Held{}
	for _, goal := range append([]int{0}, g.Steps...) {
		more, err := g.openIdle(goal - len(held))
		held = append(held, more...)
		if err != nil {
			return Result{}, fmt.Errorf("at %d connections: %w", len(held), err)
		}
		g.pause(g.Window)
		bytes, err := proc.Memory(g.PIDs)
		if err != nil {
			return Result{}, err
		}
		steps = append(steps, Held{goal, bytes})
	}
	if err := alive(held); err != nil {
		return Result{}, err
	}
	return Result{Units: int64(len(held)), Seconds: 1, TLS: g.tlsText, Held: steps}, g.ctx.Err()
}

// closeAbruptly closes connections without a TLS close_notify.
func closeAbruptly(conns []net.Conn) {
	for _, c := range conns {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		_ = c.Close()
	}
}

// openIdle opens count more connections.
func (g *generator) openIdle(count int) (held []net.Conn, err error) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	free := make(chan struct{}, opening)
	for range count {
		free <- struct{}{}
		workers.Go(func() {
			c, failure := g.openIdleConn()
			mu.Lock()
			defer mu.Unlock()
			if failure != nil {
				err = failure
			} else {
				held = append(held, c)
			}
			<-free
		})
	}
	workers.Wait()
	return held, err
}

// openIdleConn opens one connection and leaves it idle after one request.
func (g *generator) openIdleConn() (net.Conn, error) {
	t := g.next()
	c, err := g.reach(t)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReaderSize(c, 4096)
	if g.Upgraded {
		err = g.upgrade(c, r, t.host)
	} else {
		err = g.roundTrip(c, r, g.request(t.host))
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, c.SetDeadline(time.Time{})
}

// alive returns an error unless all connections are still open: memory freed by closing connections does not count.
func alive(conns []net.Conn) error {
	closed := slices.IndexFunc(conns, func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Microsecond))
		_, err := c.Read(make([]byte, 1))
		return !errors.Is(err, os.ErrDeadlineExceeded)
	})
	if closed >= 0 {
		return fmt.Errorf("connection %d was closed while it was idle", closed)
	}
	return nil
}
