package conformance

import (
	"os"
	"testing"

	"boxgate/conformance"
	"boxgate/e2e/harness"
)

func TestMain(m *testing.M) {
	if conformance.IsClient() {
		os.Exit(conformance.ClientMain())
	}
	harness.Main(m)
}
