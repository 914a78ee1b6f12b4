package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness/knobs"
	"boxgate/internal/fault"
)

// errInjected is the error of a failing step.
var errInjected = errors.New("fault injected by a test")

// gathered bounds the delay of coalesced events, because tests wait for them.
const gathered = 50 * time.Millisecond

// injectFaults makes this process fail as ordered by the file, once each time the file is written.
func injectFaults() {
	fault.LimitIntervals(gathered)
	path := os.Getenv(knobs.FaultsFile)
	if path == "" {
		return
	}
	hook := func(ctx context.Context, step string) error {
		order, err := os.ReadFile(path)
		kind, wanted, _ := strings.Cut(string(order), " ")
		if err != nil || wanted != step || os.Remove(path) != nil {
			return nil //nolint:nilerr // no order for this step
		}
		return injectFault(ctx, kind, path)
	}
	fault.Inject(hook, func() time.Time {
		text, err := os.ReadFile(path + knobs.Clock)
		wrong, _ := time.ParseDuration(string(text))
		if err != nil || wrong == 0 {
			return time.Now()
		}
		return time.Now().Add(wrong)
	})
}

func injectFault(ctx context.Context, kind, path string) error {
	switch kind {
	case knobs.Die:
		_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
		select {}
	case knobs.Panic:
		panic("a panic that a test asked for, with " + knobs.Secret)
	case knobs.Hang:
		<-ctx.Done()
		return ctx.Err()
	case knobs.Wait:
		for os.Remove(path+knobs.Release) != nil {
			time.Sleep(time.Millisecond)
		}
		return nil
	}
	return errInjected
}
