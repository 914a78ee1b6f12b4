// Command gateway is the gateway of end-to-end tests: cmd/gateway with the hooks of package knobs. The harness builds
// it once and executes it, so that test binaries need not link it.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"boxgate/cmd/gateway/command"
	"boxgate/e2e/harness/confine"
	"boxgate/e2e/harness/knobs"
)

func main() {
	if err := confineSelf(); err != nil {
		fmt.Fprintln(os.Stderr, "the gateway cannot be confined as its unit asks for:", err)
		os.Exit(1)
	}
	injectFaults()
	setResolver()
	os.Exit(command.Run(os.Args[1:]))
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
