// Command gateway is the gateway of end-to-end tests: cmd/gateway with the hooks of package knobs. The harness builds
// it once and executes it, so that test binaries need not link it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/cmd/gateway/command"
	"boxgate/e2e/harness/confine"
	"boxgate/e2e/harness/knobs"
	"boxgate/internal/fault"
)

func main() {
	if err := confineSelf(); err != nil {
		fmt.Fprintln(os.Stderr, "the gateway cannot be confined as its unit asks for:", err)
		os.Exit(1)
	}
	injectFaults()
	setResolver()
	os.Exit(command.Run(command.Arguments(os.Args)))
}

// confined is an environment variable set in a confined process.
const confined = "GATEWAY_TEST_IS_CONFINED"

// confineSelf confines this process and executes it again, if the environment requests it. It does nothing unless the
// process runs as root, because systemd starts the gateway as root.
func confineSelf() error {
	path := os.Getenv(knobs.Unit)
	if path == "" || os.Getenv(confined) != "" || len(os.Args) < 2 || os.Args[1] != "serve" || os.Geteuid() != 0 {
		return nil
	}
	u, err := confine.ReadUnit(path)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // this thread becomes the program
	if err := u.Impose(); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), confined+"=1"))
}

// setResolver replaces the resolver of the process, if the environment requests it.
func setResolver() {
	at := os.Getenv(knobs.Resolver)
	if at == "" {
		return
	}
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}}
}

// errInjected is the error of a failing step.
var errInjected = errors.New("fault injected by a test")

// gathered bounds the delay of coalesced events, because tests wait for them.
const gathered = 50 * time.Millisecond

// injectFaults makes this process fail as ordered by the file, once each time the file is written.
func injectFaults() {
	fault.LimitIntervals(gathered)
	if most, err := time.ParseDuration(os.Getenv(knobs.Lease)); err == nil {
		fault.LimitLeases(most)
	}
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
