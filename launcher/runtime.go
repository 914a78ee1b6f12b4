package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/cgroup"
	"boxgate/launcher/container"
	"boxgate/policy"
)

// cgroup returns the box's control group. It is at the top level, so no parents have to be cleaned up, and its name
// contains the state directory and the box, so that launchers on one host do not conflict.
func (l *Launcher) cgroup(id policy.BoxID) cgroup.Group {
	return cgroup.Group("/boxgate-" + l.tag + "-" + string(id))
}

// HasOwnStack reports whether boxes have their own network stack; see [oci.Runtime].OwnNetwork.
func (l *Launcher) HasOwnStack() bool { return l.runtime.OwnNetwork }

// runtimeCommand returns a command that runs the runtime and logs its errors to logFile.
func (l *Launcher) runtimeCommand(ctx context.Context, logFile string, args ...string) *exec.Cmd {
	all := append([]string{"--root", l.runc.Root, "--log", logFile, "--log-format", "json"}, l.runc.ExtraArgs...)
	cmd := exec.CommandContext(ctx, l.runc.Command, append(all, args...)...)
	cmd.Dir = l.runc.WorkDir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { // the runtime must not report our readiness to systemd
		return strings.HasPrefix(kv, "NOTIFY_SOCKET=")
	})
	return cmd
}

// stateFiles returns the files, outside its directory, in which the runtime keeps the state of a box.
func (l *Launcher) stateFiles(id policy.BoxID) []string {
	return l.runtime.StateFiles(l.dirs.runtimeRoot(), string(id))
}

// isContainer reports whether the runtime knows a box.
func (l *Launcher) isContainer(id policy.BoxID) bool {
	if len(l.stateFiles(id)) > 0 {
		return true
	}
	_, err := os.Stat(l.containerState(id))
	return !errors.Is(err, fs.ErrNotExist)
}

// startLimited starts the runtime with the limits of a box, unless the runtime enforces them itself.
func (l *Launcher) startLimited(cmd *exec.Cmd, lim container.Limits) error {
	if l.runtime.OwnLimits {
		return cmd.Start()
	}
	return container.StartLimited(cmd, lim)
}

// guest signals the processes of a command in a guest kernel, which the host cannot signal directly.
type guest struct {
	l   *Launcher
	box policy.BoxID
	pid int // in the box; 0: unknown
}

// guestTimeout bounds the runtime's call that sends a signal.
const guestTimeout = 10 * time.Second

// Signal implements [process.Tree].
func (g guest) Signal(sig unix.Signal) error {
	if g.pid == 0 {
		return ErrNotRunning
	}
	ctx, cancel := context.WithTimeout(context.Background(), guestTimeout)
	defer cancel()
	var errs []error
	for _, who := range []string{"--pgid", "--pid"} {
		errs = append(errs, g.l.runtimeCommand(ctx, os.DevNull, "kill", who, strconv.Itoa(g.pid), string(g.box), strconv.Itoa(int(sig))).Run())
	}
	if errs[0] == nil || errs[1] == nil {
		return nil
	}
	return errors.Join(errs...)
}

// Kill implements [process.Tree].
func (g guest) Kill() error { return g.Signal(unix.SIGKILL) }

// whyFailed returns why a call of the runtime failed: the cause of ctx, or [runtimeError].
func whyFailed(ctx context.Context, logFile string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return runtimeError(logFile, err)
}

// runtimeError replaces "exit status 1" by the last error in the runtime's log.
func runtimeError(logFile string, err error) error {
	data, rerr := os.ReadFile(logFile)
	if rerr != nil {
		return err
	}
	last := ""
	for line := range bytes.Lines(data) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && entry.Level == "error" {
			last = entry.Msg
		}
	}
	if last == "" {
		return err
	}
	return errors.New(strings.TrimSpace(last))
}
