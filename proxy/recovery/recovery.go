// Package recovery recovers from panics in the goroutines that carry a box's traffic: the connection or exchange fails,
// the gateway keeps running, and no traffic ends up in the log.
package recovery

import (
	"errors"

	"go.uber.org/zap"

	"boxgate/policy"
)

// ErrFault is the outcome of work that a panic interrupted.
var ErrFault = errors.New("interrupted by a fault of the gateway")

// Panic recovers from a panic, logs its stack and calls after. It must be deferred directly. The panic's own text is
// not logged, as it might quote traffic.
func Panic(log *zap.Logger, box policy.BoxID, after func()) {
	if v := recover(); v != nil {
		Log(log, "panic in an exchange", box, v)
		after()
	}
}

// Log logs a recovered value with the stack. The value's text is included only if the runtime produced it. A value that reports that it
// was logged where it arose, with that stack, is not logged again.
func Log(log *zap.Logger, message string, box policy.BoxID, v any) {
	if known, ok := v.(interface{ Reported() bool }); ok && known.Reported() {
		return
	}
	what := zap.String("panic", "raised by code")
	if err, ok := v.(interface{ RuntimeError() }); ok {
		what = zap.Any("panic", err)
	}
	log.Error(message, zap.String("box", string(box)), what, zap.Stack("stack"))
}
