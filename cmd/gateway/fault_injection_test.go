package main

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

// faultsFile names, in the environment of a gateway under test, the file that says how it shall fail: the kind and the
// step. Beside it, with the suffix .clock, stands by how much its wall clock is wrong.
const faultsFile = "GATEWAY_TEST_FAULT"

// What a gateway under test can be told to do at a step.
const (
	faultDie   = "die"   // it kills itself with SIGKILL
	faultError = "error" // the step fails
	faultPanic = "panic"
	faultHang  = "hang" // until whoever asked gives up
)

// errInjected is what a step fails with.
var errInjected = errors.New("a fault that a test asked for")

// failAsTold makes this process, a gateway under test, fail as the file says, once for each time it is written.
func failAsTold() {
	path := os.Getenv(faultsFile)
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
		case faultDie:
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
			select {}
		case faultPanic:
			panic("a panic that a test asked for, with " + testSecret)
		case faultHang:
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

// arm makes the gateway fail when it next reaches a step.
func (w *world) arm(kind, step string) {
	w.t.Helper()
	w.order("", kind+" "+step)
}

// jump sets the gateway's wall clock forward, or back.
func (w *world) jump(by time.Duration) {
	w.t.Helper()
	w.order(".clock", by.String())
}

func (w *world) order(suffix, text string) {
	w.t.Helper()
	path := w.faultsPath()
	err := os.WriteFile(path+".new", []byte(text), 0o600)
	if err = errors.Join(err, os.Rename(path+".new", path+suffix)); err != nil {
		w.t.Fatal(err)
	}
}

// faultsPath is where the world's gateway looks for its faults.
func (w *world) faultsPath() string { return filepath.Join(w.Dir, "fault") }

// happened fails the test unless the gateway has reached the step it was told to fail at.
func (w *world) happened(what string) {
	w.t.Helper()
	if _, err := os.Stat(w.faultsPath()); err == nil {
		w.t.Errorf("%s: the gateway did not come to this step", what)
		_ = os.Remove(w.faultsPath())
	}
}

// died waits for the gateway to end by itself.
func (w *world) died(what string) {
	w.t.Helper()
	select {
	case <-w.Exited:
	case <-time.After(20 * time.Second):
		w.t.Errorf("%s: the gateway lives", what)
	}
	w.Kill()
}

// up starts the gateway if it is not running.
func (w *world) up() {
	w.t.Helper()
	if w.Process != nil {
		return
	}
	if err := w.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}
