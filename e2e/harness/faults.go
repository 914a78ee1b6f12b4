package harness

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"boxgate/e2e/harness/knobs"
)

// FaultsFile is [knobs.FaultsFile].
const FaultsFile = knobs.FaultsFile

// Arm makes the gateway fail the next time it reaches a step.
func (w *World) Arm(kind, step string) {
	w.T.Helper()
	w.writeOrder("", kind+" "+step)
}

// Release releases a gateway that waits at a step.
func (w *World) Release() {
	w.T.Helper()
	w.writeOrder(knobs.Release, "")
}

// Waiting reports whether no gateway has used [World.Release] yet.
func (w *World) Waiting() bool {
	_, err := os.Stat(w.FaultsPath() + knobs.Release)
	return err == nil
}

// ShiftClock moves the gateway's wall clock forward or back.
func (w *World) ShiftClock(by time.Duration) {
	w.T.Helper()
	w.writeOrder(knobs.Clock, by.String())
}

// writeOrder writes a fault or clock offset to the file that the gateway reads.
func (w *World) writeOrder(suffix, text string) {
	w.T.Helper()
	path := w.FaultsPath()
	err := os.WriteFile(path+".new", []byte(text), 0o600)
	if err = errors.Join(err, os.Rename(path+".new", path+suffix)); err != nil {
		w.T.Fatal(err)
	}
}

// FaultsPath returns the path of the faults file of the world's gateway.
func (w *World) FaultsPath() string { return filepath.Join(w.Dir, "fault") }

// Armed reports whether the gateway has not yet reached the armed step.
func (w *World) Armed() bool {
	_, err := os.Stat(w.FaultsPath())
	return err == nil
}

// MustReachStep fails the test unless the gateway has reached the armed step.
func (w *World) MustReachStep(what string) {
	w.T.Helper()
	if w.Armed() {
		w.T.Errorf("%s: the gateway did not reach this step", what)
		_ = os.Remove(w.FaultsPath())
	}
}

// AwaitExit waits for the gateway to exit.
func (w *World) AwaitExit(what string) {
	w.T.Helper()
	select {
	case <-w.Exited:
	case <-time.After(w.patience()):
		w.T.Errorf("%s: the gateway is still running", what)
	}
	w.Kill()
}

// StartIfStopped starts the gateway if it is not running.
func (w *World) StartIfStopped() {
	w.T.Helper()
	if w.Process != nil {
		return
	}
	if err := w.Start(w.T.Context()); err != nil {
		w.T.Fatal(err)
	}
}

// The kinds of faults.
const (
	FaultDie   = knobs.Die
	FaultError = knobs.Error
	FaultPanic = knobs.Panic
	FaultHang  = knobs.Hang
	FaultWait  = knobs.Wait // until [World.Release]
)
