package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/cgroup"
	"boxgate/launcher/container"
	"boxgate/policy"
)

// cgroup is the box's own control group. It has no parents to be cleaned up and names the state directory as well as the
// box, so that launchers on one host do not meet.
func (l *Launcher) cgroup(id policy.BoxID) cgroup.Group {
	return cgroup.Group("/boxgate-" + l.tag + "-" + string(id))
}

// gvisor is the name of gVisor's runtime. It is told from the others by this: its boxes have a kernel of their own.
const gvisor = "runsc"

// isGVisor reports whether a runtime is gVisor's.
func isGVisor(runtime string) bool { return filepath.Base(runtime) == gvisor }

// HasOwnStack reports whether boxes have a network stack of their own, which takes over what it finds in their network
// namespace when they start. From then on the namespace must be left alone.
func (l *Launcher) HasOwnStack() bool { return isGVisor(l.cfg.Runtime) }

// extraArgs are arguments of the runtime, before its command. gVisor is told that files are not its own alone, and are to be
// written where a box is found again after a restart of the host: not to its own memory.
func extraArgs(runtime string) []string {
	if !isGVisor(runtime) {
		return nil
	}
	return []string{"--network=sandbox", "--overlay2=none", "--file-access=shared", "--host-uds=none", "--platform=systrap"}
}

// keyringArgs keep runc and crun from making a session keyring for the box and for each of its commands: the kernel charges them
// to the box's user, who may have 200. They inherit the one that [container.StartLimited] makes.
func keyringArgs(runtime string) []string {
	switch filepath.Base(runtime) {
	case "runc", "crun":
		return []string{"--no-new-keyring"}
	}
	return nil
}

// runtimeCommand is a call of the runtime that writes what goes wrong to a file of ours.
func (l *Launcher) runtimeCommand(ctx context.Context, logFile string, args ...string) *exec.Cmd {
	all := append([]string{"--root", l.runc.Root, "--log", logFile, "--log-format", "json"}, l.runc.ExtraArgs...)
	cmd := exec.CommandContext(ctx, l.runc.Command, append(all, args...)...)
	cmd.Dir = l.runc.WorkDir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { // the readiness of a service is not the runtime's to report
		return strings.HasPrefix(kv, "NOTIFY_SOCKET=")
	})
	return cmd
}

// Below the runtime's root, gVisor keeps files named after a box and guestMark, and an empty network namespace of its own.
const (
	guestMark  = "_sandbox:"
	guestNetNS = "null-netns"
)

// guestFiles are where gVisor keeps what it knows of a box.
func (l *Launcher) guestFiles(id policy.BoxID) []string {
	if !l.HasOwnStack() {
		return nil
	}
	found, _ := filepath.Glob(filepath.Join(l.dirs.runtimeRoot(), string(id)+guestMark+"*")) // the pattern is valid
	return found
}

// isContainer reports whether the runtime knows a box.
func (l *Launcher) isContainer(id policy.BoxID) bool {
	if len(l.guestFiles(id)) > 0 {
		return true
	}
	_, err := os.Stat(l.containerState(id))
	return !errors.Is(err, fs.ErrNotExist)
}

// startLimited starts the runtime with the limits of a box. gVisor's own kernel keeps those of processes, and its host processes,
// of which there are several per process of the box, would run into them.
func (l *Launcher) startLimited(cmd *exec.Cmd, lim container.Limits) error {
	if l.HasOwnStack() {
		return cmd.Start()
	}
	return container.StartLimited(cmd, lim)
}

// guest are the processes of a command in a kernel of its own, which the host cannot signal.
type guest struct {
	l   *Launcher
	box policy.BoxID
	pid int // in the box; 0: not known
}

// guestTimeout bounds a call of the runtime for a signal.
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

// whyFailed says why a call of the runtime failed: it was given up, or what runtimeError says.
func whyFailed(ctx context.Context, logFile string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return runtimeError(logFile, err)
}

// runtimeError replaces "exit status 1" by what the runtime wrote to its log: the last line that is an error.
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
