package change

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// ErrFault stands for a panic.
var ErrFault = errors.New("a fault of the gateway; its log says where")

// Contain makes an error of a panic of f. Where it happened is logged, not its text, which may hold a secret.
func Contain(log *zap.Logger, f func() error, about ...zap.Field) (err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("panic", append(about, zap.Stack("stack"))...)
			err = ErrFault
		}
	}()
	return f()
}

// changeTimeout bounds the change of one box once it has begun. A change of all boxes has as much time for each of them.
const changeTimeout = time.Minute

// Begun returns a context for a change that must not stop half-way because its caller has gone.
func Begun(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
}

// restoreTimeout bounds a rollback.
const restoreTimeout = 10 * time.Second

// Restoring returns a context for a rollback, which goes on although the change it undoes was cancelled.
func Restoring(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
}
