// Package fault names the steps at which a test can make the gateway fail: it may die there, get an error, panic or
// hang. Only _test.go files and the gateway of the end-to-end tests call [Inject], [LimitIntervals] or [LimitLeases]. In other programs a step
// costs one comparison with nil.
//
// The names of the steps are string literals of the form "operation: completed action", each used once. A test collects
// them from the sources and tries them all.
package fault

import (
	"context"
	"time"
)

// Hook is called at each step. It may end the process, return an error, panic, or block until ctx ends. Safe for
// concurrent use.
type Hook func(ctx context.Context, step string) error

var (
	hook  Hook             // nil: no step fails
	clock func() time.Time // nil: time.Now
)

// Inject makes every following step call h, and [Now] call now; either may be nil. It must be called before other
// goroutines start.
func Inject(h Hook, now func() time.Time) { hook, clock = h, now }

var most time.Duration // 0: intervals keep their length

// LimitIntervals bounds the intervals returned by [Interval], so that tests are fast. It must be called before other goroutines
// start.
func LimitIntervals(d time.Duration) { most = d }

// Interval returns d, or less in a test that called [LimitIntervals]. It is for the time until the next check or attempt, and
// for the time in which similar events are coalesced.
func Interval(d time.Duration) time.Duration {
	if most > 0 {
		return min(d, most)
	}
	return d
}

var mostLease time.Duration // 0: leases keep their length

// LimitLeases bounds the leases returned by [Lease], so that tests of their end are fast. It must be called before other goroutines start.
func LimitLeases(d time.Duration) { mostLease = d }

// Lease returns d, or less in a test that called [LimitLeases]. It is for the time to live of a claim that is renewed.
func Lease(d time.Duration) time.Duration {
	if mostLease > 0 {
		return min(d, mostLease)
	}
	return d
}

type spared struct{}

// WithoutFaults returns a context in which no step fails, for dry runs.
func WithoutFaults(ctx context.Context) context.Context {
	return context.WithValue(ctx, spared{}, true)
}

// At marks a step at which the operation can fail. The caller must return the error.
func At(ctx context.Context, step string) error {
	if hook == nil || ctx.Value(spared{}) != nil {
		return nil
	}
	return hook(ctx, step)
}

// Mark marks a step after which the operation cannot return an error; the process can still die or panic.
func Mark(ctx context.Context, step string) {
	if hook != nil && ctx.Value(spared{}) == nil {
		_ = hook(ctx, step)
	}
}

// Now returns the wall clock time for checking and issuing certificates, and for schedules.
func Now() time.Time {
	if clock == nil {
		return time.Now()
	}
	return clock()
}
