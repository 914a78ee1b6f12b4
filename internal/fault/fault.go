// Package fault names the steps at which a test can make the gateway fail: it may die there, get an error, panic or
// hang. Nothing is injected outside of tests, where only a _test.go file calls [Inject] or [Hasten]; a step then costs one
// comparison with nil.
//
// The names of the steps are string literals, "operation: what has just been done", each used once: a test collects
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
	hook  Hook             // nil: nothing ever fails
	clock func() time.Time // nil: time.Now
)

// Inject makes every following step call h, and [Now] call now; either may be nil. It must be called before anything
// else runs.
func Inject(h Hook, now func() time.Time) { hook, clock = h, now }

var most time.Duration // 0: intervals are as long as they are

// Hasten bounds the intervals that [Interval] returns, so that a test need not wait for them. It must be called before
// anything else runs.
func Hasten(d time.Duration) { most = d }

// Interval returns how long to wait until the next look at a clock, the next attempt, or more events that are alike: d, but
// in a test that hastens.
func Interval(d time.Duration) time.Duration {
	if most > 0 {
		return min(d, most)
	}
	return d
}

type spared struct{}

// Spare returns a context in which nothing fails: the steps of a dry run are not those of the operation itself.
func Spare(ctx context.Context) context.Context { return context.WithValue(ctx, spared{}, true) }

// At marks a step at which the caller can fail. The caller must return its error.
func At(ctx context.Context, step string) error {
	if hook == nil || ctx.Value(spared{}) != nil {
		return nil
	}
	return hook(ctx, step)
}

// Mark marks a step after which nothing in the operation can fail; the process can still die, or panic.
func Mark(ctx context.Context, step string) {
	if hook != nil && ctx.Value(spared{}) == nil {
		_ = hook(ctx, step)
	}
}

// Now returns the wall clock time by which certificates are checked and issued, and schedules are due.
func Now() time.Time {
	if clock == nil {
		return time.Now()
	}
	return clock()
}
