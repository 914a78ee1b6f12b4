package firewall

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// watch holds the sockets that hear of changes. They are opened when the table stands, so that nothing is missed before
// [Firewall.Watch] begins to read.
type watch struct{ nft, route *netlink.Conn }

func (f *Firewall) openWatch() error {
	var err error
	if f.watch.nft, err = f.subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
		return err
	}
	f.watch.route, err = f.subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	return err
}

func (w *watch) close() {
	for _, c := range []*netlink.Conn{w.nft, w.route} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// damage is what was found changed and is not repaired yet.
type damage struct {
	wake chan struct{} // holds one

	mu    sync.Mutex // guards what follows
	whole bool       // something that all boxes share
	boxes map[policy.BoxID]bool
}

func newDamage() *damage {
	return &damage{wake: make(chan struct{}, 1), boxes: map[policy.BoxID]bool{}}
}

// all notes that everything must be written anew.
func (d *damage) all() { d.add(true) }

// add notes damage and wakes who repairs it.
func (d *damage) add(whole bool, boxes ...policy.BoxID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.whole = d.whole || whole
	for _, id := range boxes {
		d.boxes[id] = true
	}
	select {
	case d.wake <- struct{}{}:
	default: // one is waiting already
	}
}

// take returns the damage and forgets it.
func (d *damage) take() (whole bool, boxes map[policy.BoxID]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	whole, boxes = d.whole, d.boxes
	d.whole, d.boxes = false, map[policy.BoxID]bool{}
	return whole, boxes
}

// A repair that failed is tried again after a while that doubles from firstRetry to lastRetry.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Watch notices what other programs change of the table, the routing, the gateway's addresses, forwarding and the boxes'
// links, and puts it back, until ctx ends. Meanwhile boxes are closed: the routing gate lets through only what the table
// has judged, and the table only what came over a box's own link. What cannot be put back is tried again. It returns an
// error when it can no longer see changes. Call it once.
func (f *Firewall) Watch(ctx context.Context) error {
	d := newDamage()
	failed := make(chan error, 2)
	var followers sync.WaitGroup
	followers.Go(func() { failed <- follow(f.watch.nft, f.tableChanged, d) })
	followers.Go(func() { failed <- follow(f.watch.route, f.routingChanged, d) })
	defer followers.Wait()
	defer f.watch.close()
	var retry <-chan time.Time
	wait := firstRetry
	for {
		select {
		case <-d.wake:
		case <-retry:
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		}
		retry = nil
		d.settle()
		if whole, boxes := f.repair(ctx, d); whole || len(boxes) > 0 {
			d.mu.Lock()
			d.whole = d.whole || whole
			for _, id := range boxes {
				d.boxes[id] = true
			}
			d.mu.Unlock()
			retry = time.After(wait)
			wait = min(2*wait, lastRetry)
			continue
		}
		wait = firstRetry
	}
}

// settle waits until the changes have come to an end: a flush of the rules is one event after the other, and one repair
// is enough for all.
func (d *damage) settle() {
	const quiet = 5 * time.Millisecond
	for {
		select {
		case <-d.wake:
		case <-time.After(quiet):
			return
		}
	}
}

// repair puts back what is damaged and returns what is to be tried again.
func (f *Firewall) repair(ctx context.Context, d *damage) (whole bool, boxes []policy.BoxID) {
	whole, damaged := d.take()
	if !whole && len(damaged) == 0 {
		return false, nil
	}
	var problems map[policy.BoxID]error
	var err error
	if whole {
		problems, err = f.restore(ctx)
	} else {
		problems = f.restoreBoxes(ctx, damaged)
	}
	if err != nil {
		f.cfg.Log.Error("kernel rules were changed by another program and cannot be restored yet; boxes stay closed", zap.Error(err))
		return true, nil
	}
	for id, problem := range problems {
		if f.hasGone(id, problem) {
			continue
		}
		f.cfg.Log.Error("what another program changed for a box cannot be put back yet; the box stays closed",
			zap.String("box", string(id)), zap.Error(problem))
		boxes = append(boxes, id)
	}
	if len(boxes) == 0 && len(problems) == 0 {
		f.cfg.Log.Warn("kernel rules were changed by another program and have been restored")
	}
	return false, boxes
}

// errFlapping says that a box's link was repaired often just now. A box with a say in its own network can take its link
// away as fast as it is put back, and would keep the gateway busy with it.
var errFlapping = errors.New("it is changed over and over, and repaired from time to time")

// A box's link is repaired this often at once, and then as often in this time.
const (
	repairsAtOnce = 20
	repairsEvery  = 10 * time.Second
)

// repairs counts those of one box. The zero value has counted none.
type repairs struct {
	since time.Time
	n     int
}

// allow reports whether one more is due.
func (r *repairs) allow(now time.Time) bool {
	if now.Sub(r.since) > repairsEvery {
		r.since, r.n = now, 0
	}
	r.n++
	return r.n <= repairsAtOnce
}

// hasGone reports whether the box has no network namespace any more, as when it was stopped behind our back. There is
// nothing to repair then, and it is said once.
func (f *Firewall) hasGone(id policy.BoxID, problem error) bool {
	if !errors.Is(problem, errNamespaceGone) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.boxes[id]; ok && !b.gone {
		b.gone = true
		f.cfg.Log.Warn("the network namespace of a box is gone; the box has no network until it is attached again",
			zap.String("box", string(id)), zap.Error(problem))
	}
	return true
}

// restoreBoxes restores some boxes and returns what went wrong.
func (f *Firewall) restoreBoxes(ctx context.Context, boxes map[policy.BoxID]bool) map[policy.BoxID]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	problems := map[policy.BoxID]error{}
	for id := range boxes {
		if b, ok := f.boxes[id]; ok && !f.closed {
			if !b.repairs.allow(time.Now()) {
				problems[id] = errFlapping
				continue
			}
			if err := f.restoreBox(ctx, b); err != nil {
				problems[id] = err
			}
		}
	}
	return problems
}

// follow notes foreign changes, and lost events as damage to everything, until the socket is closed.
func follow(c *netlink.Conn, inspect func([]netlink.Message, *damage), d *damage) error {
	for {
		batch, err := c.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			d.all()
		case err != nil:
			return fmt.Errorf("firewall: watch: %w", err)
		default:
			inspect(batch, d)
		}
	}
}

// subscribe opens a netlink socket that hears the groups.
func (f *Firewall) subscribe(family int, groups ...uint32) (*netlink.Conn, error) {
	c, err := netlink.Dial(family, &netlink.Config{NetNS: int(f.ns)})
	if err != nil {
		return nil, fmt.Errorf("firewall: watch: %w", err)
	}
	_ = c.SetReadBuffer(socketBuffer) // a larger buffer only makes a loss, and the full restore after it, less likely
	for _, g := range groups {
		if err := c.JoinGroup(g); err != nil {
			return nil, errors.Join(fmt.Errorf("firewall: watch: %w", err), c.Close())
		}
	}
	return c, nil
}
