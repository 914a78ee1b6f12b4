package inside

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// command is a running command.
type command struct {
	pid        int
	supervisor *supervisor
	terminal   *os.File // nil unless the command has the terminal
}

// launch starts the command as its user, without a way to gain privileges. The supervisor answers its calls of connect(2).
func launch(s Spec, supervise func(listener int) (*supervisor, error)) (*command, error) {
	c := &command{}
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID), Groups: groups(s.Groups)}}
	if s.Foreground {
		var err error
		if c.terminal, err = os.OpenFile("/dev/tty", os.O_RDWR, 0); err != nil {
			return nil, err
		}
		attr.Setpgid, attr.Foreground, attr.Ctty = true, true, int(c.terminal.Fd())
	}
	program, err := findProgram(s)
	if err != nil {
		return nil, err
	}
	// Privileges are dropped for the thread only, and the command is forked from it.
	runtime.LockOSThread()
	listener, err := confine(s.UID)
	if err != nil {
		return nil, err
	}
	if c.supervisor, err = supervise(listener); err != nil {
		return nil, err
	}
	c.pid, err = syscall.ForkExec(program, s.Args, &syscall.ProcAttr{Dir: s.Dir, Env: s.Env, Files: []uintptr{0, 1, 2}, Sys: attr})
	if err != nil {
		return nil, notStarted(126, "%s cannot be started: %w", s.Args[0], err)
	}
	return c, nil
}

func groups(ids []int) []uint32 {
	out := make([]uint32, len(ids))
	for i, id := range ids {
		out[i] = uint32(id)
	}
	return out
}

// findProgram looks the program up as execvp(3) does. A relative path is relative to the directory of the command.
func findProgram(s Spec) (string, error) {
	if info, err := os.Stat(s.Dir); err != nil || !info.IsDir() {
		return "", notStarted(126, "the directory %s is not there for the command: start it in another", s.Dir)
	}
	name := s.Args[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range s.Env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		at := filepath.Join(dir, name)
		if !filepath.IsAbs(at) {
			at = filepath.Join(s.Dir, at)
		}
		if info, err := os.Stat(at); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return at, nil
		}
	}
	return "", notStarted(127, "there is no program %q in PATH", name)
}

// resume continues a stopped command, in the foreground if it had the terminal.
func (c *command) resume() {
	if c.terminal == nil {
		_ = unix.Kill(c.pid, unix.SIGCONT)
		return
	}
	_ = SetForeground(c.terminal, c.pid)
	_ = unix.Kill(-c.pid, unix.SIGCONT)
}

// SetForeground makes a process group the foreground of a terminal. The caller may be in the background, where the kernel
// would otherwise stop it for that.
func SetForeground(terminal *os.File, group int) error {
	return BlockTTOU(func() error {
		return unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPGRP, group)
	})
}

// BlockTTOU runs f on a thread that the terminal cannot stop, whatever its settings.
func BlockTTOU(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var blocked, before unix.Sigset_t
	blocked.Val[0] = 1 << (unix.SIGTTOU - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}
