package watch

import (
	"net/netip"
	"sync"
	"time"

	"boxgate/policy"
)

// damage is what was changed and is not repaired yet.
type damage struct {
	wake chan struct{} // holds one

	mu       sync.Mutex // guards the following
	whole    bool       // damage to what all boxes share
	boxes    map[policy.BoxID]bool
	suspects map[netip.Addr]bool // routes there may be damaged: see checkRoutes
	uplink   bool                // the uplink may have changed
}

func newDamage() *damage {
	return &damage{wake: make(chan struct{}, 1), boxes: map[policy.BoxID]bool{}, suspects: map[netip.Addr]bool{}}
}

// all notes that everything must be rewritten.
func (d *damage) all() { d.add(true) }

// add notes damage and wakes the repair.
func (d *damage) add(whole bool, boxes ...policy.BoxID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.whole = d.whole || whole
	for _, id := range boxes {
		d.boxes[id] = true
	}
	d.wakeUp()
}

// suspectRoute notes that the route to an address must be checked, and wakes the repair.
func (d *damage) suspectRoute(a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.suspects[a] = true
	d.wakeUp()
}

// uplinkChanged notes that the uplink may have changed.
func (d *damage) uplinkChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uplink = true
	d.wakeUp()
}

// takeUplink reports whether the uplink may have changed since it was last called.
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

// takeSuspects returns the addresses to which routes must be checked and resets them.
func (d *damage) takeSuspects() map[netip.Addr]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	suspects := d.suspects
	d.suspects = map[netip.Addr]bool{}
	return suspects
}

// take returns the damage and resets it.
func (d *damage) take() (whole bool, boxes map[policy.BoxID]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	whole, boxes = d.whole, d.boxes
	d.whole, d.boxes = false, map[policy.BoxID]bool{}
	return whole, boxes
}

// settle waits until the changes have ended: a flush of the rules is many events, and one repair is enough for all.
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
