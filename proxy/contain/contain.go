// Package contain ends panics in the goroutines that carry a box's traffic: the connection or exchange fails, the gateway
// goes on, and nothing that passed through gets into the log.
package contain

import (
	"errors"

	"go.uber.org/zap"

	"boxgate/policy"
)

// ErrFault is the outcome of work that a panic interrupted.
var ErrFault = errors.New("interrupted by a fault of the gateway")

// Panic recovers from a panic, logs where it arose and calls after. It must be deferred itself. The panic's own text is
// not logged, as it might quote what passed through.
func Panic(log *zap.Logger, box policy.BoxID, after func()) {
	if v := recover(); v != nil {
		Log(log, "panic in an exchange", box, v)
		after()
	}
}

// Log logs a recovered value with the stack, and without its text unless the runtime wrote that.
func Log(log *zap.Logger, message string, box policy.BoxID, v any) {
	what := zap.String("panic", "raised by code")
	if err, ok := v.(interface{ RuntimeError() }); ok {
		what = zap.Any("panic", err)
	}
	log.Error(message, zap.String("box", string(box)), what, zap.Stack("stack"))
}
