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

// FaultsFile is the environment variable, of a gateway under test, with the path of the file that says how it should
// fail: the kind and the step. The same path with the suffix .clock contains the offset of its wall clock.
const FaultsFile = "GATEWAY_TEST_FAULT"

// The ways in which a gateway under test can fail at a step.
const (
	FaultDie   = "die"   // it kills itself with SIGKILL
	FaultError = "error" // the step fails
	FaultPanic = "panic"
	FaultHang  = "hang" // until the caller gives up
	FaultWait  = "wait" // until the test says [World.GoOn]; the step then succeeds
)

// errInjected is what a step fails with.
var errInjected = errors.New("fault injected by a test")

// gathered is for how long a gateway under test gathers events that are alike: tests wait for them.
const gathered = 50 * time.Millisecond

// failAsTold makes this process, a gateway under test, fail as the file says, once each time it is written.
func failAsTold() {
	fault.Hasten(gathered)
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
		case FaultWait:
			for os.Remove(path+goOn) != nil {
				time.Sleep(time.Millisecond)
			}
			return nil
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

// goOn is the suffix of the file that ends FaultWait.
const goOn = ".goon"

// GoOn lets the gateway go on that waits at a step.
func (w *World) GoOn() {
	w.T.Helper()
	w.order(goOn, "")
}

// Waits reports whether no gateway has gone on yet since [World.GoOn].
func (w *World) Waits() bool {
	_, err := os.Stat(w.FaultsPath() + goOn)
	return err == nil
}

// Jump sets the gateway's wall clock forward or back.
func (w *World) Jump(by time.Duration) {
	w.T.Helper()
	w.order(".clock", by.String())
}

// order writes a fault or clock offset to the file that the gateway reads.
func (w *World) order(suffix, text string) {
	w.T.Helper()
	path := w.FaultsPath()
	err := os.WriteFile(path+".new", []byte(text), 0o600)
	if err = errors.Join(err, os.Rename(path+".new", path+suffix)); err != nil {
		w.T.Fatal(err)
	}
}

// FaultsPath returns the path of the faults file of the world's gateway.
func (w *World) FaultsPath() string { return filepath.Join(w.Dir, "fault") }

// Armed reports whether the gateway has yet to reach the armed step.
func (w *World) Armed() bool {
	_, err := os.Stat(w.FaultsPath())
	return err == nil
}

// Happened fails the test unless the gateway has reached the armed step.
func (w *World) Happened(what string) {
	w.T.Helper()
	if w.Armed() {
		w.T.Errorf("%s: the gateway did not reach this step", what)
		_ = os.Remove(w.FaultsPath())
	}
}

// Died waits for the gateway to exit on its own.
func (w *World) Died(what string) {
	w.T.Helper()
	select {
	case <-w.Exited:
	case <-time.After(w.patience()):
		w.T.Errorf("%s: the gateway is still running", what)
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
