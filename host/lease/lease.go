// Package lease computes how long temporary entries of policies last, even if the host's clock changes.
//
// A lease ends when its duration has passed on the boot clock (CLOCK_BOOTTIME), which cannot be set, and which keeps
// running while the host sleeps and while the gateway is down. A lease that allows also ends when the wall clock reaches
// its end, whichever comes first. After a reboot only the wall clock is left. If it is before the start of the lease, it
// must be wrong: then a lease that allows has ended, and one that denies lasts for its whole duration again.
package lease

import (
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
	"boxgate/store"
)

// Now is a moment on both clocks.
type Now struct {
	Wall  time.Time
	Boot  string        // identifies the boot; "": unknown
	Since time.Duration // on the boot clock
}

// New returns a lease that starts now.
func New(allow bool, entry string, lasts time.Duration, now Now) store.Lease {
	return store.Lease{
		Allow: allow, Entry: entry, StartedAt: now.Wall.UTC().Round(0), ExpiresAt: now.Wall.Add(lasts).UTC().Round(0),
		Boot: now.Boot, BootEnd: now.Since + lasts,
	}
}

// NewAudit returns a lease that starts now, and while it lasts the policy is audited.
func NewAudit(lasts time.Duration, now Now) store.Lease {
	l := New(true, "", lasts, now)
	l.Audit = true
	return l
}

// Remaining returns the remaining time of a lease; 0 if it has ended.
func Remaining(l store.Lease, now Now) time.Duration {
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

// Rebase rebases a lease of an earlier boot onto the boot clock of this one. From then on the wall clock cannot prolong
// it, nor end a lease that denies.
func Rebase(l store.Lease, now Now) store.Lease {
	if now.Boot != "" && l.Boot != now.Boot {
		l.BootEnd = now.Since + Remaining(l, now)
		l.Boot = now.Boot
	}
	return l
}

// Running returns the leases that have not ended.
func Running(list []store.Lease, now Now) (running []store.Lease) {
	for _, l := range list {
		if Remaining(l, now) > 0 {
			running = append(running, l)
		}
	}
	return running
}

// System reads the host's clocks.
func System() Now {
	now := Now{Wall: fault.Now()}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err == nil {
		now.Boot, now.Since = bootID(), time.Duration(ts.Nano())
	}
	return now
}

// bootID returns the ID of the host's current boot, "" if unknown.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})
