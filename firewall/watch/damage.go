package watch

import (
	"net/netip"
	"sync"
	"time"

	"boxgate/policy"
)

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
