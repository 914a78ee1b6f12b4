package apitest

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/policy"
)

// StartSession runs a command as a process of the test, in its own process group.
func (h *Host) StartSession(_ context.Context, id policy.BoxID, req api.SessionRequest, stdin io.Reader, stdout, stderr io.Writer) (api.Session, error) {
	_, leave, err := h.box(id)
	leave()
	if err != nil {
		return nil, err
	}
	s := &hostSession{cmd: exec.Command(req.Command[0], req.Command[1:]...), host: h}
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = h.Dir, stdout, stderr
	for name, value := range req.Env {
		s.cmd.Env = append(s.cmd.Env, name+"="+value)
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, api.Errorf(api.ErrUnavailable, "%s cannot be started", req.Command[0])
	}
	go func() {
		_, _ = io.Copy(in, stdin)
		in.Close()
	}()
	return s, nil
}

type hostSession struct {
	cmd  *exec.Cmd
	host *Host
}

// Pid implements [api.Session].
func (s *hostSession) Pid() int { return s.cmd.Process.Pid }

// Signal implements [api.Session].
func (s *hostSession) Signal(name string) error {
	if !api.IsSessionSignal(name) {
		return fmt.Errorf("no signal %q", name)
	}
	return unix.Kill(-s.cmd.Process.Pid, unix.SignalNum("SIG"+name))
}

// Resize implements [api.Session].
func (s *hostSession) Resize(size api.TerminalSize) error {
	s.host.Mu.Lock()
	defer s.host.Mu.Unlock()
	s.host.Sizes = append(s.host.Sizes, size)
	return nil
}

// Wait implements [api.Session].
func (s *hostSession) Wait(ctx context.Context) (api.ExecResult, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.Signal("KILL") })
	defer stop()
	_ = s.cmd.Wait()
	if ctx.Err() != nil {
		return api.ExecResult{}, context.Cause(ctx)
	}
	code := s.cmd.ProcessState.ExitCode()
	if status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return api.ExecResult{ExitCode: code}, nil
}
