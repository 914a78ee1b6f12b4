package harness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
)

// FaultsFile names, in the environment of a gateway under test, the file that says how it shall fail: the kind and the
// step. Beside it, with the suffix .clock, stands by how much its wall clock is wrong.
const FaultsFile = "GATEWAY_TEST_FAULT"

// What a gateway under test can be told to do at a step.
const (
	FaultDie   = "die"   // it kills itself with SIGKILL
	FaultError = "error" // the step fails
	FaultPanic = "panic"
	FaultHang  = "hang" // until whoever asked gives up
)

// errInjected is what a step fails with.
var errInjected = errors.New("a fault that a test asked for")

// failAsTold makes this process, a gateway under test, fail as the file says, once for each time it is written.
func failAsTold() {
	path := os.Getenv(FaultsFile)
	if path == "" {
		return
	}
	hook := func(ctx context.Context, step string) error {
		order, err := os.ReadFile(path)
		kind, wanted, _ := strings.Cut(string(order), " ")
		if err != nil || wanted != step || os.Remove(path) != nil {
			return nil //nolint:nilerr // no order to fail here
		}
		switch kind {
		case FaultDie:
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
			select {}
		case FaultPanic:
			panic("a panic that a test asked for, with " + TestSecret)
		case FaultHang:
			<-ctx.Done()
			return ctx.Err()
		}
		return errInjected
	}
	fault.Inject(hook, func() time.Time {
		text, err := os.ReadFile(path + ".clock")
		wrong, _ := time.ParseDuration(string(text))
		if err != nil || wrong == 0 {
			return time.Now()
		}
		return time.Now().Add(wrong)
	})
}

// Arm makes the gateway fail when it next reaches a step.
func (w *World) Arm(kind, step string) {
	w.T.Helper()
	w.order("", kind+" "+step)
}

// Jump sets the gateway's wall clock forward, or back.
func (w *World) Jump(by time.Duration) {
	w.T.Helper()
	w.order(".clock", by.String())
}

// order writes what the gateway shall do where it looks for it.
func (w *World) order(suffix, text string) {
	w.T.Helper()
	path := w.FaultsPath()
	err := os.WriteFile(path+".new", []byte(text), 0o600)
	if err = errors.Join(err, os.Rename(path+".new", path+suffix)); err != nil {
		w.T.Fatal(err)
	}
}

// FaultsPath is where the world's gateway looks for its faults.
func (w *World) FaultsPath() string { return filepath.Join(w.Dir, "fault") }

// Happened fails the test unless the gateway has reached the step it was told to fail at.
func (w *World) Happened(what string) {
	w.T.Helper()
	if _, err := os.Stat(w.FaultsPath()); err == nil {
		w.T.Errorf("%s: the gateway did not come to this step", what)
		_ = os.Remove(w.FaultsPath())
	}
}

// Died waits for the gateway to end by itself.
func (w *World) Died(what string) {
	w.T.Helper()
	select {
	case <-w.Exited:
	case <-time.After(w.patience()):
		w.T.Errorf("%s: the gateway lives", what)
	}
	w.Kill()
}

// Up starts the gateway if it is not running.
func (w *World) Up() {
	w.T.Helper()
	if w.Process != nil {
		return
	}
	if err := w.Start(w.T.Context()); err != nil {
		w.T.Fatal(err)
	}
}
