package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// TestInterruptedStatus: a command that a signal ended exits with 128 and its number, and prints nothing. Other errors stay.
func TestInterruptedStatus(t *testing.T) {
	for signal, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		ctx, stop := Interruptible()
		if err := AfterSignal(ctx, context.Canceled); !errors.Is(err, context.Canceled) {
			t.Errorf("before the signal: %v", err)
		}
		if err := syscall.Kill(os.Getpid(), signal); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		for _, err := range []error{ctx.Err(), context.Cause(ctx), fmt.Errorf("reading: %w", context.Cause(ctx))} {
			if got, ok := errors.AsType[CommandExit](AfterSignal(ctx, err)); !ok || got.Status != want || !errors.Is(err, context.Canceled) {
				t.Errorf("%v: %v", err, got)
			}
		}
		if other := errors.New("other"); AfterSignal(ctx, other) != other || AfterSignal(ctx, nil) != nil {
			t.Error("another error is hidden")
		}
		stop()
	}
}
