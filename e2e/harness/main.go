package harness

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"

	"boxgate/e2e/harness/knobs"
	"boxgate/internal/lab"
)

// Main runs the tests of a package of end-to-end tests, from its TestMain. It does not return.
func Main(m *testing.M) {
	if os.Geteuid() == 0 {
		if err := lab.RemoveStaleLabs(); err != nil {
			fmt.Fprintln(os.Stderr, "cannot remove all remains of an interrupted run:", err)
		}
	}
	waitTogether()
	status := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing the shared labs:", err)
		status = 1
	}
	if testing.Verbose() {
		fmt.Println(countLabs())
	}
	os.Exit(status)
}

// ResolverVariable is [knobs.Resolver].
const ResolverVariable = knobs.Resolver

// UnitVariable is [knobs.Unit].
const UnitVariable = knobs.Unit

// waitTogether runs more parallel tests than there are cores, unless the command line sets the number, because tests
// wait most of the time.
func waitTogether() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))) // a valid number
	}
}

// RaceDetector reports whether this binary was built with the race detector.
func RaceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// ImageDir returns the directory that keeps images of boxes between runs.
func ImageDir() string {
	if dir := os.Getenv("TEST_IMAGE_DIR"); dir != "" {
		return dir
	}
	return "/var/lib/boxgate/images"
}
