// Package nightly divides the tests into tiers: `make quick` runs tests that need neither root nor the kernel, `make
// test` is the gate, and `make nightly` sets BOXGATE_NIGHTLY and runs more. docs/testing.md explains the tiers.
package nightly

import (
	"os"
	"testing"
)

// Variable is the environment variable that selects the nightly tier when it is not empty.
const Variable = "BOXGATE_NIGHTLY"

// Enabled reports whether the nightly tier runs.
func Enabled() bool { return os.Getenv(Variable) != "" }

// Only skips a test outside the nightly tier. docs/testing.md lists every test that calls it, with the reason.
func Only(t testing.TB) {
	t.Helper()
	if !Enabled() {
		t.Skip("runs in the nightly tier (make nightly)")
	}
}

// Root skips a test that needs root or the kernel in the quick tier, which runs with -short. In the other tiers the
// test runs, and fails without root.
func Root(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root or the kernel (make test)")
	}
}

// Size returns full in the nightly tier and gate outside it: the number of seeds, bytes or clients a test uses.
func Size[T any](gate, full T) T {
	if Enabled() {
		return full
	}
	return gate
}
