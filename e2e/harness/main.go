package harness

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"

	"boxgate/cmd/gateway/command"
	"boxgate/cmd/gateway/command/docker"
	"boxgate/enclosure/inside"
	"boxgate/host"
	"boxgate/internal/lab"
)

// asGateway makes the test binary run as the gateway: a lab starts it as a separate process.
const asGateway = "GATEWAY_TEST_BINARY_IS_GATEWAY"

// Main is called by TestMain of a package of end-to-end tests: it runs the tests or, in a process started by a lab, the
// gateway. It does not return.
func Main(m *testing.M) {
	// A self-test and `gateway run` start the gateway's own program without any environment.
	asProbe := len(os.Args) > 1 && (os.Args[1] == host.ProbeCommand || os.Args[1] == inside.Command || os.Args[1] == docker.HoldCommand)
	if os.Getenv(asGateway) != "" || asProbe {
		if err := confineAsTold(); err != nil {
			fmt.Fprintln(os.Stderr, "the gateway cannot be confined as its unit asks for:", err)
			os.Exit(1)
		}
		failAsTold()
		resolveAsTold()
		os.Exit(command.Run(os.Args[1:]))
	}
	if err := os.Setenv(asGateway, "1"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Geteuid() == 0 {
		if err := lab.RemoveStaleLabs(); err != nil {
			fmt.Fprintln(os.Stderr, "what an interrupted run left could not all be removed:", err)
		}
	}
	waitTogether()
	os.Exit(m.Run())
}

// ResolverVariable is the environment variable, of a gateway under test, with the address and port of the name server that it
// asks for the names of its own endpoints, in the place of this machine's.
const ResolverVariable = "GATEWAY_TEST_RESOLVER"

func resolveAsTold() {
	at := os.Getenv(ResolverVariable)
	if at == "" {
		return
	}
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}}
}

// waitTogether runs more tests in parallel than there are cores, unless the command line sets the number: most of the
// time they wait.
func waitTogether() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))) // a number
	}
}

// RaceDetector reports whether this binary was built with the race detector.
func RaceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// ImageDir is where images of boxes are kept between runs.
func ImageDir() string {
	if dir := os.Getenv("TEST_IMAGE_DIR"); dir != "" {
		return dir
	}
	return "/var/lib/boxgate/images"
}
