// Package fault names the steps at which a test can make the gateway fail: it may die there, meet an error, panic or
// hang. Nothing is injected outside of tests, where only a _test.go file calls [Inject]; then a step costs one
// comparison with nil.
//
// The names of the steps are string literals, "operation: what has just been done", each used once: a test reads them
// from the sources and tries them all.
package fault

import (
	"context"
	"time"
)

// Hook is told of each step as it is reached. It may end the process, return an error, panic, or wait until ctx ends.
// It is called by many goroutines at once.
type Hook func(ctx context.Context, step string) error

var (
	hook  Hook             // nil: nothing ever fails
	clock func() time.Time // nil: time.Now
)

// Inject makes h be asked at every step from now on, and now be the clock that [Now] reads; either may be nil. It must be
// called before anything else runs.
func Inject(h Hook, now func() time.Time) { hook, clock = h, now }

type spared struct{}

// Spare returns a context in which nothing fails: the steps of a rehearsal are not those of what is rehearsed.
func Spare(ctx context.Context) context.Context { return context.WithValue(ctx, spared{}, true) }

// At says that a step is reached at which the caller can fail. The error is the caller's failure.
func At(ctx context.Context, step string) error {
	if hook == nil || ctx.Value(spared{}) != nil {
		return nil
	}
	return hook(ctx, step)
}

// Mark says that a step is reached after which nothing of the operation can fail; the process can still die, or panic.
func Mark(ctx context.Context, step string) {
	if hook != nil && ctx.Value(spared{}) == nil {
		_ = hook(ctx, step)
	}
}

// Now is the wall clock by which certificates are judged and made.
func Now() time.Time {
	if clock == nil {
		return time.Now()
	}
	return clock()
}
