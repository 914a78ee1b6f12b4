package secrets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy/name"
)

// commandPath is the search path for programs without a path, and the PATH of every command.
const commandPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	maxStderr   = 4 << 10         // bytes read of a command's standard error
	shownStderr = 512             // bytes of it that are logged
	outputDelay = 2 * time.Second // wait for output after the command has ended
)

// runCommand returns the standard output of a command. The command runs without a shell, in /, with only PATH, HOME and
// LANG in its environment, no standard input, and in its own process group, which is killed when the command or ctx
// ends. output contains the command's standard error, safe to log; known is the previous value.
func runCommand(ctx context.Context, argv []string, known name.Secret, f form) (value name.Secret, output string, err error) {
	program, err := findProgram(argv[0])
	if err != nil {
		return name.Secret{}, "", err
	}
	stdout, stderr := &bounded{limit: f.maxRaw(), overflow: f.errTooLong()}, &bounded{limit: maxStderr}
	cmd := exec.CommandContext(ctx, program, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Dir, cmd.Env = "/", commandEnvironment()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = outputDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var ended atomic.Bool
	cmd.Cancel = func() error {
		if ended.Load() {
			return os.ErrProcessDone
		}
		return unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}
	if err := cmd.Start(); err != nil {
		return name.Secret{}, "", causeOf(err)
	}
	killGroup(cmd.Process.Pid, &ended)
	err = failureOf(ctx, cmd.Wait(), stdout)
	output = maskStderr(stderr, stdout.data, known)
	if err != nil {
		clear(stdout.data)
		return name.Secret{}, output, err
	}
	value, err = f.valueOf(stdout.data)
	return value, output, err
}

// killGroup waits until the process has ended and kills the rest of its group. The process has not been reaped at that
// time, so the group's ID cannot have been reused.
func killGroup(pid int, ended *atomic.Bool) {
	defer ended.Store(true)
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL) // the group is usually empty
}

// failureOf returns why a command failed; nil if it succeeded.
func failureOf(ctx context.Context, err error, stdout *bounded) error {
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case stdout.truncated:
		return stdout.overflow // SIGPIPE ended it, unless it ignores that
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return errors.New("it did not end in time and was killed")
	case ctx.Err() != nil:
		return errStopping
	case errors.Is(err, exec.ErrWaitDelay):
		return errors.New("it left a process behind that keeps its output open")
	case exited && exit.Exited():
		return fmt.Errorf("it ended with status %d", exit.ExitCode())
	case exited:
		return fmt.Errorf("it ended by a signal: %v", exit.Sys().(syscall.WaitStatus).Signal())
	default:
		return errors.New("waiting for it failed")
	}
}

// findProgram returns the path of a program. It must not be world-writable or owned by another user, because it runs
// with the gateway's privileges.
func findProgram(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, checkProgram(name)
	}
	for _, dir := range filepath.SplitList(commandPath) {
		path := filepath.Join(dir, name)
		err := checkProgram(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	return "", fmt.Errorf("there is no such program in %s", commandPath)
}

func checkProgram(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return causeOf(err)
	}
	switch {
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s is not a program: run chmod +x %s", path, path)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("%s is world-writable (mode %04o): run chmod o-w %s", path, info.Mode().Perm(), path)
	}
	return checkOwner(path, info)
}

func commandEnvironment() []string {
	home, err := os.UserHomeDir()
	if err != nil || home == "" {
		home = "/"
	}
	return []string{"PATH=" + commandPath, "HOME=" + home, "LANG=C.UTF-8"}
}

// maskStderr prepares a command's standard error for the log. The text may contain the new value, the previous one or
// other output of the command: all are masked. If it was truncated, its end may be part of a value, and is dropped.
func maskStderr(stderr *bounded, stdout []byte, known name.Secret) string {
	text, longest := string(stderr.data), 0
	both := string(stdout) + "\n" + known.Reveal()
	lines := strings.FieldsFunc(both, func(r rune) bool { return r == '\n' || r == '\r' })
	for _, part := range strings.FieldsFunc(both, func(r rune) bool { return strings.ContainsRune("\"'{}:,\n\r", r) }) {
		if len(strings.TrimSpace(part)) > 7 { // parts of JSON
			lines = append(lines, part)
		}
	}
	slices.SortFunc(lines, func(a, b string) int { return len(b) - len(a) }) // longest first: one may contain another
	for _, line := range lines {
		if line = strings.TrimSpace(line); len(line) > 3 {
			text = strings.ReplaceAll(text, line, "[redacted]")
			longest = max(longest, len(line))
		}
	}
	if stderr.truncated {
		text = text[:max(0, len(text)-longest)]
	}
	return audit.Escape(strings.TrimSpace(text), shownStderr)
}

// bounded keeps the first limit bytes written to it. Further writes are discarded if overflow is nil, so that the writer
// can continue; otherwise they fail with overflow.
type bounded struct {
	limit     int
	overflow  error
	data      []byte
	truncated bool
}

// Write implements [io.Writer].
func (b *bounded) Write(p []byte) (int, error) {
	fits := min(len(p), b.limit-len(b.data))
	b.data = append(b.data, p[:fits]...)
	b.truncated = b.truncated || fits < len(p)
	if fits == len(p) || b.overflow == nil {
		return len(p), nil
	}
	return fits, b.overflow
}
