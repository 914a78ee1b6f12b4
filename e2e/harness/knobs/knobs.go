// Package knobs names what end-to-end tests use to steer a gateway under test: environment variables, and a file that says
// how the gateway fails. Only the binary of e2e/harness/gateway knows them.
package knobs

// FaultsFile is the environment variable with the path of the file that says how the gateway fails: the kind and the step.
// The same path with the suffix [Clock] contains the offset of its wall clock; with [GoOn] it ends [Wait].
const FaultsFile = "GATEWAY_TEST_FAULT"

// Suffixes of the path in [FaultsFile].
const (
	Clock = ".clock"
	GoOn  = ".goon"
)

// The ways in which a gateway can fail at a step.
const (
	Die   = "die"   // it kills itself with SIGKILL
	Error = "error" // the step fails
	Panic = "panic"
	Hang  = "hang" // until the caller gives up
	Wait  = "wait" // until the test says so; the step then succeeds
)

// Resolver is the environment variable with the address and port of the name server that the gateway asks for the names of
// its own endpoints, instead of this machine's.
const Resolver = "GATEWAY_TEST_RESOLVER"

// Unit is the environment variable with the path of a systemd unit: the gateway runs under its confinement.
const Unit = "GATEWAY_TEST_UNIT"

// Secret is the key of the boxes that have one, which must never be in a box. A panic injected by a test contains it.
const Secret = "sk-test-b7f1c2d3e4a5968778695a4b3c2d1e0f"
