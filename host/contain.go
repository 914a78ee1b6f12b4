package host

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// errFault stands for a panic.
var errFault = errors.New("a fault of the gateway; its log says where")

// contained makes an error of a panic of f. Where it happened is logged, not its text, which may hold a secret.
func contained(log *zap.Logger, f func() error, about ...zap.Field) (err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("panic", append(about, zap.Stack("stack"))...)
			err = errFault
		}
	}()
	return f()
}

// changeTimeout bounds the change of one box once it has begun. A change of all boxes has as much time for each of them.
const changeTimeout = time.Minute

// begun returns a context for a change that must not stop half-way because its caller has gone.
func begun(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
}

// restoreTimeout bounds a rollback.
const restoreTimeout = 10 * time.Second

// restoring returns a context for a rollback, which goes on although the change it undoes was cancelled.
func restoring(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
}
