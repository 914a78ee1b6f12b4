package attack

import (
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// TestAttacksFromRootOfABox: code that has become the box's root, with launcher.root, reaches no more of the network, the host, the
// gateway and other boxes than the box's user.
func TestAttacksFromRootOfABox(t *testing.T) {
	t.Parallel()
	rows := []string{"TestUserOfCommands", "TestAttackRawSocketsInTheBox", "TestAttackDenyWins", "TestAttackFilesNameTheHost"}
	if nightly.Enabled() {
		rows = append(rows, "TestAttackICMPTunnel", "TestAttackUDP", "TestAttackSpecialAddresses", "TestAttackHostPorts",
			"TestAttackAllowedNameAtForeignAddress", "TestAttackAuthorityOtherThanSNI", "TestAttackKernelResourcesOfNeighbours",
			"TestAttackFilesThatNeverEnd")
	}
	harness.Repeat(t, harness.RootedRun(t.Context(), rows...), rows...)
}

// TestUserOfCommands: the commands of these tests run as the box's user without rights to gain, and as its root in a rooted run.
func TestUserOfCommands(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box, want := w.Create(map[string]any{}), "1000\nNoNewPrivs:\t1\n"
	if harness.Rooted() {
		want = "0\nNoNewPrivs:\t0\n"
	}
	if out := w.MustSh(box, "id -u; grep NoNewPrivs /proc/self/status"); out != want {
		t.Errorf("%q, want %q", out, want)
	}
}
