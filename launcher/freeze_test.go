package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// TestFrozen: no process in a box moves while f runs, and all continue afterwards, unless the box was paused before.
func TestFrozen(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	errOfF := errors.New("of f")
	for _, c := range []struct {
		paused bool
		result error
		after  State
	}{{false, nil, StateIdle}, {false, errOfF, StateIdle}, {true, nil, StatePaused}, {true, errOfF, StatePaused}} {
		if c.paused {
			if err := l.Pause(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		err := l.WhileFrozen(t.Context(), id, func() error {
			if st, err := l.State(t.Context(), id); err != nil || st.State != StatePaused {
				t.Errorf("%+v: %+v, %v", c, st, err)
			}
			return c.result
		})
		if st, serr := l.State(t.Context(), id); !errors.Is(err, c.result) || serr != nil || st.State != c.after {
			t.Errorf("%+v: %v, then %+v, %v", c, err, st, serr)
		}
	}
}

// TestBoxWhoseStateCannotBeTold: a box in an unknown state is not treated as ended.
func TestBoxWhoseStateCannotBeTold(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	runtime := l.runc.Command
	l.runc.Command = "/bin/false"
	if st, err := l.State(t.Context(), id); err == nil {
		t.Errorf("the state from a failing runtime: %+v", st)
	}
	err := l.whileUnchanged(t.Context(), id, func() error {
		if !l.isStopping(id) {
			t.Error("a box that runs was taken to stand still")
		}
		return nil
	})
	if err != nil {
		t.Errorf("standing still: %v", err)
	}
	endFirst(t, l, id)
	if st, err := l.State(t.Context(), id); err != nil || st.Pid != 0 {
		t.Errorf("a box that has ended: %+v, %v", st, err)
	}
	l.runc.Command = runtime
}

// TestCommandsWaitForAFrozenBox: a command that arrives while a box is briefly frozen starts afterwards.
func TestCommandsWaitForAFrozenBox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	over := false
	ended := make(chan error, 1)
	err := l.WhileFrozen(t.Context(), id, func() error {
		go func() {
			code, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}})
			if code != 0 || !over {
				err = errors.Join(err, errors.New("it ran in a frozen box"))
			}
			ended <- err
		}()
		select {
		case err := <-ended:
			t.Errorf("the command did not wait: %v", err)
		case <-time.After(50 * time.Millisecond): // a command that does not wait ends within that time
		}
		over = true
		return nil
	})
	if err := errors.Join(err, <-ended); err != nil {
		t.Error(err)
	}
}

// TestFloodOfCommandsAndPauses: commands fail because of a pause only with ErrPaused.
func TestFloodOfCommandsAndPauses(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	const commands = 4
	ended := make(chan error, commands)
	for range commands {
		go func() {
			for range 5 {
				if _, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{"true"}}); err != nil && !errors.Is(err, ErrPaused) {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for left := commands; left > 0; {
		if err := errors.Join(l.Pause(t.Context(), id), l.Resume(t.Context(), id)); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			left--
			if err != nil {
				t.Error(err)
			}
		default:
		}
	}
}

// TestBoxGoesOnWhenTheRuntimeFails: a frozen box is thawed even if the runtime cannot report its state.
func TestBoxGoesOnWhenTheRuntimeFails(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	runtime := l.runc.Command
	if err := l.WhileFrozen(t.Context(), id, func() error { l.runc.Command = "/bin/false"; return nil }); err != nil {
		t.Errorf("a snapshot: %v", err)
	}
	if err := errors.Join(l.Pause(t.Context(), id), l.Resume(t.Context(), id)); err != nil {
		t.Errorf("a pause: %v", err)
	}
	l.runc.Command = runtime
	if st, err := l.State(t.Context(), id); err != nil || st.State != StateIdle {
		t.Errorf("afterwards: %+v, %v", st, err)
	}
	if code, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); code != 0 || err != nil {
		t.Errorf("a command: %d, %v", code, err)
	}
}

// TestPausedBoxThatIsSaidToRun: a paused box stays paused after a snapshot, although crun reports it as running while one
// process still moves.
func TestPausedBoxThatIsSaidToRun(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	if err := l.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	runtime, says := l.runc.Command, filepath.Join(t.TempDir(), "says-running")
	script := "#!/bin/sh\n" + runtime + ` "$@" | sed s/paused/running/` + "\n"
	if err := os.WriteFile(says, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	l.runc.Command = says
	err := l.WhileFrozen(t.Context(), id, func() error { return nil })
	st, serr := l.State(t.Context(), id)
	l.runc.Command = runtime
	if err = errors.Join(err, serr); err != nil || st.State != StatePaused {
		t.Errorf("with a runtime that reports it as running: %+v, %v", st, err)
	}
	if st, err := l.State(t.Context(), id); err != nil || st.State != StatePaused {
		t.Errorf("afterwards: %+v, %v", st, err)
	}
	if err := l.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if code, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); code != 0 || err != nil {
		t.Errorf("a command: %d, %v", code, err)
	}
}

// TestBoxThatEndsWhileItIsPaused: a box that ended while paused is reported as ended, although the runtime reports it as
// paused because its control group is frozen, with or without processes. It can be restarted.
func TestBoxThatEndsWhileItIsPaused(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	var made Spec
	id := newBox(t, l, func(s *Spec) { made = *s })
	endFirst(t, l, id)
	if err := l.cgroup(id).Freeze(t.Context()); err != nil { // as a pause that has found the box running
		t.Fatal(err)
	}
	if st, err := l.State(t.Context(), id); err != nil || st.State != StateError || st.Pid != 0 {
		t.Errorf("alone: %+v, %v", st, err)
	}
	list, err := l.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != StateError || list[0].Pid != 0 {
		t.Errorf("in a list: %+v, %v", list, err)
	}
	for what, err := range map[string]error{"a pause": l.Pause(t.Context(), id), "a resume": l.Resume(t.Context(), id)} {
		if !errors.Is(err, ErrNotRunning) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := l.cgroup(id).Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Renew(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	if code, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); code != 0 || err != nil {
		t.Errorf("a command: %d, %v", code, err)
	}
}

// endFirst kills the first process of a box and returns once it has ended.
func endFirst(t *testing.T, l *Launcher, id policy.BoxID) {
	t.Helper()
	first, err := l.FirstProcess(id)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if err := unix.PidfdSendSignal(int(first.Fd()), unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	ended := []unix.PollFd{{Fd: int32(first.Fd()), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(ended, -1); !errors.Is(err, unix.EINTR) { // EINTR: a signal of Go's scheduler
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}
