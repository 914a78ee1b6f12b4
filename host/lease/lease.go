// Package lease says how long the temporary entries of policies last, whatever happens to the host's clock.
//
// A lease ends when its time has passed since the host's boot (CLOCK_BOOTTIME), which nobody can set, and which goes on while
// the host sleeps and while the gateway is down. One that allows also ends when the wall clock has reached its end: of the two
// clocks, the one that closes first counts. After a reboot only the wall clock is left. If that is behind the beginning of a
// lease, it cannot be right: one that allows has ended, and one that denies lasts for its whole time again.
package lease

import (
	"time"

	"boxgate/store"
)

// Now is a moment, on both clocks.
type Now struct {
	Wall  time.Time
	Boot  string        // identifies the boot; "": not known
	Since time.Duration // since that boot
}

// New makes a lease that lasts for the time from now on.
func New(allow bool, entry string, lasts time.Duration, now Now) store.Lease {
	return store.Lease{
		Allow: allow, Entry: entry, StartedAt: now.Wall.UTC().Round(0), ExpiresAt: now.Wall.Add(lasts).UTC().Round(0),
		Boot: now.Boot, BootEnd: now.Since + lasts,
	}
}

// Left returns how much longer a lease lasts; 0 if it has ended.
func Left(l store.Lease, now Now) time.Duration {
	wall := l.ExpiresAt.Sub(now.Wall)
	if now.Boot != "" && l.Boot == now.Boot {
		left := l.BootEnd - now.Since
		if l.Allow {
			left = min(left, wall)
		}
		return max(left, 0)
	}
	if now.Wall.Before(l.StartedAt) { // the clock was set back
		if l.Allow {
			return 0
		}
		return l.ExpiresAt.Sub(l.StartedAt)
	}
	return max(wall, 0)
}

// Anchored returns a lease of an earlier boot with its end counted in this one, so that from here on the wall clock cannot
// prolong it, nor end one that denies.
func Anchored(l store.Lease, now Now) store.Lease {
	if now.Boot != "" && l.Boot != now.Boot {
		l.BootEnd = now.Since + Left(l, now)
		l.Boot = now.Boot
	}
	return l
}

// Running returns the leases that have not ended.
func Running(list []store.Lease, now Now) (running []store.Lease) {
	for _, l := range list {
		if Left(l, now) > 0 {
			running = append(running, l)
		}
	}
	return running
}
