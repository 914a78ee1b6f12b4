package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// nobody is the user and group of the probing process.
const nobody = 65534

// probeTimeout bounds a probing process. Its tasks finish long before.
const probeTimeout = 9 * time.Second

// Start runs a plan in the network namespace and returns its report. The process runs as user nobody. It has no
// capability except CAP_NET_RAW if the plan has frames, and inherits no environment and no files.
func Start(ctx context.Context, netns string, command []string, p Plan) (Report, error) {
	if len(p.Tasks) == 0 {
		return Report{}, nil
	}
	in, err := json.Marshal(p)
	if err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var out, errout bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &limited{w: &errout, remaining: 4096}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Setpgid: true}
	if p.Raw {
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_NET_RAW}
	}
	cmd.WaitDelay = time.Second
	if err := startIn(netns, cmd); err != nil {
		return Report{}, fmt.Errorf("the probing process cannot be started: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return Report{}, fmt.Errorf("the probing process failed: %w (%s)", err, strings.TrimSpace(errout.String()))
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return Report{}, fmt.Errorf("cannot parse the report of the probing process: %w", err)
	}
	return r, nil
}

// limited discards the bytes beyond its limit.
type limited struct {
	w         io.Writer
	remaining int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.remaining)
	l.remaining -= n
	_, err := l.w.Write(b[:n])
	return len(b), err
}

// startIn starts cmd from a thread in the network namespace. A thread that cannot return to its namespace stays locked,
// so it exits with its goroutine and is never reused.
func startIn(netns string, cmd *exec.Cmd) error {
	ns, err := os.Open(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("entering the box's network namespace: %w", err)
			return
		}
		err = cmd.Start()
		back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back)
	}()
	return <-done
}
