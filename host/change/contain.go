package change

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// ErrFault replaces a panic.
var ErrFault = errors.New("internal error; see the gateway's log")

// Contain converts a panic of f into [ErrFault]. It logs the stack but not the panic value, which may contain a secret.
func Contain(log *zap.Logger, f func() error, about ...zap.Field) (err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("panic", append(about, zap.Stack("stack"))...)
			err = ErrFault
		}
	}()
	return f()
}

// changeTimeout is the time limit of a change of one box once it has begun. In a change of all boxes, it applies to each.
const changeTimeout = time.Minute

// Detach returns a context for a change that must not stop half-way because its caller disconnects.
func Detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
}

// restoreTimeout is the time limit of a rollback.
const restoreTimeout = 10 * time.Second

// DetachRollback returns a context for a rollback, which continues even if the failed change was canceled.
func DetachRollback(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
}
