package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible returns the context of a program, which the first SIGINT or SIGTERM cancels; a second one ends the process at
// once. stop releases what it holds.
func Interruptible() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
