package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible returns a context that the first SIGINT or SIGTERM cancels, with an [Interrupted] as the cause. A second one ends
// the process immediately. stop releases the signal handlers.
func Interruptible() (ctx context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			number, _ := s.(syscall.Signal)
			signal.Stop(signals)
			cancel(Interrupted{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// Interrupted is the cause of a context that a signal has cancelled.
type Interrupted struct{ Signal syscall.Signal }

// Error implements error.
func (i Interrupted) Error() string { return "interrupted" }

// Is makes errors.Is report a cancellation, since net/http returns the cause of a cancelled context.
func (Interrupted) Is(target error) bool { return target == context.Canceled }

// Status returns the exit status of a command that the signal ended: 130 for SIGINT.
func (i Interrupted) Status() int { return 128 + int(i.Signal) }

// AfterSignal returns the error of a command that ended after its context was cancelled by a signal: one that only reports the
// cancellation becomes the exit status of the signal, without a message.
func AfterSignal(ctx context.Context, err error) error {
	by, ok := errors.AsType[Interrupted](context.Cause(ctx))
	if !ok || !errors.Is(err, context.Canceled) {
		return err
	}
	if _, own := errors.AsType[StatusError](err); own {
		return err
	}
	return CommandExit{Status: by.Status()}
}
