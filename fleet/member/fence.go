package member

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Fence is closed when the lease of the host may have ended: the others then no longer wait for this host. It is open until the time
// at which the last successful keep-alive was sent, plus the TTL of the lease, on CLOCK_BOOTTIME, which includes suspension. etcd
// counts the TTL from the arrival of the keep-alive, so the fence closes before the lease ends. The zero value is closed. Safe for
// concurrent use; [Fence.Closed] does not block or allocate.
type Fence struct {
	end atomic.Int64 // on CLOCK_BOOTTIME, in nanoseconds
}

// Closed reports whether shared rules and keys of the fleet must not be used.
func (f *Fence) Closed() bool {
	now, ok := boottime()
	return !ok || int64(now) >= f.end.Load()
}

// Left returns how long the fence stays open without another keep-alive; 0 if it is closed.
func (f *Fence) Left() time.Duration {
	now, ok := boottime()
	if !ok {
		return 0
	}
	return max(0, time.Duration(f.end.Load()-int64(now)))
}

// extend opens the fence for ttl from sent, the time on CLOCK_BOOTTIME before the keep-alive was sent.
func (f *Fence) extend(sent, ttl time.Duration) {
	f.end.Store(max(f.end.Load(), int64(sent+ttl)))
}

// shut closes the fence.
func (f *Fence) shut() { f.end.Store(0) }

// boottime returns the time since the machine booted, including suspension. ok is false if the kernel does not know it.
func boottime() (since time.Duration, ok bool) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
