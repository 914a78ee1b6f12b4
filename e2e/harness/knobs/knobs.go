// Package knobs names the controls of a gateway under test: environment variables, and a file of faults to inject. Only
// the binary of e2e/harness/gateway reads them.
package knobs

// FaultsFile is the environment variable with the path of the faults file. The file contains the kind of the next fault
// and its step. The file with the suffix [Clock] contains the offset of the gateway's wall clock. Creating the file
// with the suffix [Release] ends [Wait].
const FaultsFile = "GATEWAY_TEST_FAULT"

// Suffixes of the path in [FaultsFile].
const (
	Clock   = ".clock"
	Release = ".goon"
)

// The kinds of faults.
const (
	Die   = "die"   // the gateway kills itself with SIGKILL
	Error = "error" // the step fails
	Panic = "panic"
	Hang  = "hang" // until the caller gives up
	Wait  = "wait" // the step waits until the test calls Release, and then succeeds
)

// Resolver is the environment variable with the address and port of a name server. The gateway then uses it, instead of
// the machine's resolver, for the names of its own endpoints.
const Resolver = "GATEWAY_TEST_RESOLVER"

// Lease is the environment variable with the longest time to live of a lease, such as that of a host in its fleet.
const Lease = "GATEWAY_TEST_LEASE"

// Unit is the environment variable with the path of a systemd unit. The gateway then runs under its confinement.
const Unit = "GATEWAY_TEST_UNIT"

// Secret is the key of the boxes that use one. It must never be in a box. A panic injected by a test contains it.
const Secret = "sk-test-b7f1c2d3e4a5968778695a4b3c2d1e0f"
