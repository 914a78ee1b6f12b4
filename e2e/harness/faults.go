package harness

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness/knobs"
	"boxgate/internal/testnet"
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

// Patience is the timeout of tests for a required event. It bounds liveness, not speed: a passing test may take long
// while another program keeps both cores busy. GATEWAY_TEST_PATIENCE, a duration, shortens it: the test of a mutant
// waits for an event that never comes.
var Patience = patienceOr(2 * time.Minute)

func patienceOr(usual time.Duration) time.Duration {
	d, err := time.ParseDuration(os.Getenv("GATEWAY_TEST_PATIENCE"))
	if err != nil || d <= 0 {
		return usual
	}
	return min(d, usual)
}

// hurry is the timeout in a failed test, whose further waits may fail for the same reason.
const hurry = 3 * time.Second

// patience returns the test's timeout for a required event.
func (w *World) patience() time.Duration {
	if w.T.Failed() {
		w.failed.Store(true)
	}
	if w.failed.Load() {
		return hurry
	}
	return Patience
}

// Until waits for a condition that others bring about.
func (w *World) Until(what string, holds func() bool) {
	w.T.Helper()
	w.UntilEvery(time.Millisecond, what, holds)
}

// UntilEvery is [World.Until] for a condition that is expensive to check. Checks become less frequent the longer it
// waits, and take at most a third of the time, to leave the machine to the awaited work.
func (w *World) UntilEvery(pace time.Duration, what string, holds func() bool) {
	w.T.Helper()
	began, patience := time.Now(), w.patience()
	for {
		check := time.Now()
		if holds() {
			return
		}
		now := time.Now()
		waited, took := now.Sub(began), now.Sub(check)
		if waited > patience {
			w.failed.Store(true)
			w.T.Fatalf("did not happen: %s", what)
		}
		time.Sleep(max(pace, min(waited/10, 100*time.Millisecond), min(2*took, 500*time.Millisecond)))
	}
}

// AwaitCounted returns when all packets that the gateway's host has sent so far are counted.
func (w *World) AwaitCounted() {
	w.T.Helper()
	mark := netip.MustParseAddr("198.51.100.250")
	seen := func() (n int) {
		for _, p := range w.Net.Packets(mark.String()) {
			n += p.Count
		}
		return n
	}
	before := seen()
	c, err := w.Net.Gateway().DialContext(w.T.Context(), "udp", netip.AddrPortFrom(mark, 9).String())
	if err != nil {
		w.T.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("mark")); err != nil {
		w.T.Fatal(err)
	}
	w.Until("the marker arrives", func() bool { return seen() > before })
}

// Untouched fails the test if any packet has reached one of the addresses.
func (w *World) Untouched(addrs ...netip.Addr) {
	w.T.Helper()
	w.AwaitCounted()
	for _, a := range addrs {
		for _, p := range w.Net.Packets(a.String()) {
			w.T.Errorf("%v received %+v", a, p)
		}
		w.NothingReached(a.String())
	}
}

// NothingReached fails the test if a host of the internet received anything.
func (w *World) NothingReached(host string) {
	w.T.Helper()
	if seen := w.Net.Received(host, testnet.Any); len(seen) != 0 {
		w.T.Errorf("%s received %d entries, the first: %+v", host, len(seen), seen[0])
	}
}

// Lag returns a function that reports the longest scheduling delay of this process since the call, up to the end of the
// test. A busy machine can add that much to a measured time.
func Lag(t *testing.T) func() time.Duration {
	const pace = time.Millisecond
	var most atomic.Int64
	tick := time.NewTicker(pace)
	go func() {
		defer tick.Stop()
		for last := time.Now(); t.Context().Err() == nil; {
			<-tick.C
			now := time.Now()
			most.Store(max(most.Load(), int64(now.Sub(last)-pace)))
			last = now
		}
	}()
	return func() time.Duration { return time.Duration(most.Load()) }
}

// EndLater ends a process that a command of the gateway has started, as a reload does, at the end of the test, and waits for it.
func EndLater(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer unix.Close(fd)
		_ = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000); err == nil && n > 0 {
				return
			}
		}
		t.Error("the gateway does not end")
	})
}
