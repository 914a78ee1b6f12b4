package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// grace is the time that go test and its tests have to exit after an interrupt.
const grace = 10 * time.Second

// goTest runs go test and calls each for every line of its output: with an event, or with the line if it is not an
// event. It returns the exit status. When ctx is done, it interrupts go test and the tests, waits for them, and returns
// the error of ctx.
func (g *gate) goTest(ctx context.Context, args []string, each func(e event, line []byte)) (int, error) {
	if ctx.Err() != nil {
		return 1, ctx.Err()
	}
	cmd := exec.Command(g.command, append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	// In its own process group, go test and the tests receive the same interrupt however testgate itself was
	// interrupted.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	group := -cmd.Process.Pid
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			_ = syscall.Kill(group, syscall.SIGINT)
		}
		select {
		case <-ended:
		case <-time.After(grace):
			_ = syscall.Kill(group, syscall.SIGKILL)
		}
	}()
	readErr := g.readEvents(stdout, each)
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil && exit.Exited() {
		return exit.ExitCode(), readErr
	}
	return 0, errors.Join(ctx.Err(), err, readErr)
}

// readEvents reads the output of go test to its end and copies it to the log.
func (g *gate) readEvents(r io.Reader, each func(e event, line []byte)) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if _, err := g.log.Write(line); err != nil {
				return fmt.Errorf("writing the log: %w", err)
			}
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				e = event{}
			}
			each(e, line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
