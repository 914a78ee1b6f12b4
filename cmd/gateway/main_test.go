package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"testing"

	"boxgate/conformance"
	"boxgate/host"
	"boxgate/internal/lab"
)

// asGateway makes the test binary be the gateway: a lab starts it as a process of its own.
const asGateway = "GATEWAY_TEST_BINARY_IS_GATEWAY"

func TestMain(m *testing.M) {
	if conformance.IsClient() {
		os.Exit(conformance.ClientMain())
	}
	fuzzing := slices.Contains(os.Args, "-test.fuzzworker") // a child as well, but a test
	// A self-test starts the gateway's own program without any environment.
	asProbe := len(os.Args) > 1 && os.Args[1] == host.ProbeCommand
	if (os.Getenv(asGateway) != "" || asProbe) && !fuzzing {
		failAsTold()
		os.Exit(run(os.Args[1:]))
	}
	if err := os.Setenv(asGateway, "1"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Geteuid() == 0 && !fuzzing {
		if err := lab.RemoveStaleLabs(); err != nil {
			fmt.Fprintln(os.Stderr, "what an interrupted run left could not all be removed:", err)
		}
	}
	os.Exit(m.Run())
}

// raceDetector reports whether this binary was built with it.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// imageDirOfTests is where the debian image is kept between runs.
func imageDirOfTests() string {
	if dir := os.Getenv("TEST_IMAGE_DIR"); dir != "" {
		return dir
	}
	return "/var/lib/boxgate/images"
}
