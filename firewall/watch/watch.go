// Package watch detects when other programs change the table, the routing or the boxes' links, and has them restored.
package watch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/firewall/nft"
	"boxgate/firewall/route"
	"boxgate/policy"
)

// Watcher detects changes by other programs to the table, the routing and the boxes' links.
type Watcher struct {
	table   *nft.Table
	routing *route.Host
	links   *link.Links
	owner   Owner
	log     *zap.Logger

	damage *damage

	nft, route *netlink.Conn
}

// Box is the part of a box that must not change.
type Box struct {
	ID    policy.BoxID
	Link  string // its interface on the host
	Index int    // of Link
}

// Owner knows the boxes and restores them.
type Owner interface {
	// BoxAt visits the box whose interface on the host has the index, and BoxOf the box with the address, if it exists. The
	// box does not change during the visit: a half-finished change would be taken for damage.
	BoxAt(index int, visit func(Box))
	BoxOf(a netip.Addr, visit func(Box))
	// BoxesOf visits the boxes with the addresses. No box changes until all have been visited.
	BoxesOf(addrs map[netip.Addr]bool, visit func(netip.Addr, Box))
	// RestoreAll rewrites everything. It returns the errors of single boxes, and an error if the shared part could not be
	// restored.
	RestoreAll(ctx context.Context) (map[policy.BoxID]error, error)
	// RestoreBoxes restores some boxes, unless they have been removed. It returns the restored boxes, and the errors of the
	// others.
	RestoreBoxes(ctx context.Context, boxes map[policy.BoxID]bool) ([]policy.BoxID, map[policy.BoxID]error)
	// FollowUplink sets the MTU of the uplink, which may have changed, on the boxes' links.
	FollowUplink()
	// IsGone reports whether the problem means that no part of the box is left to repair.
	IsGone(id policy.BoxID, problem error) bool
}

// Open opens the sockets that receive changes in the network namespace. It is called after the table is written; changes
// between Open and Run are buffered.
func Open(ns netns.NsHandle, table *nft.Table, routing *route.Host, links *link.Links, owner Owner, log *zap.Logger) (*Watcher, error) {
	w := &Watcher{table: table, routing: routing, links: links, owner: owner, log: log, damage: newDamage()}
	var err error
	if w.nft, err = subscribe(ns, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
		return nil, err
	}
	w.route, err = subscribe(ns, unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Close makes Run return.
func (w *Watcher) Close() {
	for _, c := range []*netlink.Conn{w.nft, w.route} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// Suspect has [Watcher.Run] restore a box that was changed where the watcher does not look. It can be called before Run, and by several
// goroutines.
func (w *Watcher) Suspect(id policy.BoxID) { w.damage.add(false, id) }

// A failed repair is retried with a delay that doubles from firstRetry to lastRetry.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Run has changes by other programs repaired, until ctx ends. Failed repairs are retried. It returns an error when it can
// no longer see changes. Call it once.
func (w *Watcher) Run(ctx context.Context) error {
	d := w.damage
	failed := make(chan error, 2)
	var followers sync.WaitGroup
	followers.Go(func() { failed <- follow(w.nft, w.tableChanged, d) })
	followers.Go(func() { failed <- follow(w.route, w.routingChanged, d) })
	defer followers.Wait()
	defer w.Close()
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
		d.waitQuiet()
		w.checkRoutes(d)
		if d.takeUplink() {
			w.owner.FollowUplink()
		}
		if whole, boxes := w.repair(ctx, d); whole || len(boxes) > 0 {
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

// repair repairs the damage and returns the part to be retried.
func (w *Watcher) repair(ctx context.Context, d *damage) (whole bool, boxes []policy.BoxID) {
	whole, damaged := d.takeDamage()
	if !whole && len(damaged) == 0 {
		return false, nil
	}
	var restored []policy.BoxID
	var problems map[policy.BoxID]error
	var err error
	if whole {
		problems, err = w.owner.RestoreAll(ctx)
	} else {
		restored, problems = w.owner.RestoreBoxes(ctx, damaged)
	}
	if err != nil {
		w.log.Error("kernel rules were changed by another program and cannot be restored yet; boxes stay closed", zap.Error(err))
		return true, nil
	}
	for id, problem := range problems {
		if w.owner.IsGone(id, problem) {
			continue
		}
		w.log.Error("changes by another program to a box's network cannot be put back yet; the box stays closed",
			zap.String("box", string(id)), zap.Error(problem))
		boxes = append(boxes, id)
	}
	switch {
	case len(problems) > 0:
	case whole:
		w.log.Warn("kernel rules were changed by another program and have been restored")
	case len(restored) > 0: // otherwise the boxes were removed, and that was the change: a box that fails to start goes with its namespace
		w.log.Warn("kernel rules were changed by another program and have been restored", zap.Any("boxes", restored))
	}
	return false, boxes
}

// follow records changes, and lost events as damage to everything, until the socket is closed.
func follow(c *netlink.Conn, inspect func([]netlink.Message, *damage), d *damage) error {
	for {
		batch, err := c.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			d.addAll()
		case err != nil:
			return fmt.Errorf("firewall: watch: %w", err)
		default:
			inspect(batch, d)
		}
	}
}

// subscribe opens a netlink socket that is in the groups.
func subscribe(ns netns.NsHandle, family int, groups ...uint32) (*netlink.Conn, error) {
	c, err := netlink.Dial(family, &netlink.Config{NetNS: int(ns)})
	if err != nil {
		return nil, fmt.Errorf("firewall: watch: %w", err)
	}
	_ = c.SetReadBuffer(namespace.SocketBuffer) // a larger buffer only makes losses, and the full restore after them, less likely
	for _, g := range groups {
		if err := c.JoinGroup(g); err != nil {
			return nil, errors.Join(fmt.Errorf("firewall: watch: %w", err), c.Close())
		}
	}
	return c, nil
}

// damage is the set of changes that have not been repaired yet.
type damage struct {
	wake chan struct{} // capacity 1

	mu       sync.Mutex // guards the following
	whole    bool       // damage to the part that all boxes share
	boxes    map[policy.BoxID]bool
	suspects map[netip.Addr]bool // destinations of routes that may be damaged, see checkRoutes
	uplink   bool                // the uplink may have changed
}

func newDamage() *damage {
	return &damage{wake: make(chan struct{}, 1), boxes: map[policy.BoxID]bool{}, suspects: map[netip.Addr]bool{}}
}

// addAll records that everything must be rewritten.
func (d *damage) addAll() { d.add(true) }

// add records damage and wakes the repair.
func (d *damage) add(whole bool, boxes ...policy.BoxID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.whole = d.whole || whole
	for _, id := range boxes {
		d.boxes[id] = true
	}
	d.wakeUp()
}

// suspectRoute records that the route to an address must be checked, and wakes the repair.
func (d *damage) suspectRoute(a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.suspects[a] = true
	d.wakeUp()
}

// uplinkChanged records that the uplink may have changed.
func (d *damage) uplinkChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uplink = true
	d.wakeUp()
}

// takeUplink reports whether the uplink may have changed since the last call.
func (d *damage) takeUplink() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := d.uplink
	d.uplink = false
	return changed
}

func (d *damage) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default: // already woken
	}
}

// takeSuspects returns the addresses whose routes must be checked, and resets them.
func (d *damage) takeSuspects() map[netip.Addr]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	suspects := d.suspects
	d.suspects = map[netip.Addr]bool{}
	return suspects
}

// takeDamage returns the damage and resets it.
func (d *damage) takeDamage() (whole bool, boxes map[policy.BoxID]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	whole, boxes = d.whole, d.boxes
	d.whole, d.boxes = false, map[policy.BoxID]bool{}
	return whole, boxes
}

// waitQuiet waits until there are no more changes: a flush of the rules causes many events, and one repair is enough for all.
func (d *damage) waitQuiet() {
	const quiet = 5 * time.Millisecond
	for {
		select {
		case <-d.wake:
		case <-time.After(quiet):
			return
		}
	}
}
