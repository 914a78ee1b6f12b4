package attack

import (
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// An attached box is restricted like a launched one, although its root controls its own network.
func TestAttacksFromAttachedBoxes(t *testing.T) {
	t.Parallel()
	rows := []string{
		"TestAttackForgedSource", "TestAttackForgedNeighbours", // spoofing
		"TestAttackFragmentsOptionsAndTunnels", "TestAttackMalformedPackets", "TestAttackICMPTunnel", "TestAttackUDP", // the kernel
		"TestAttackAllowedNameAtForeignAddress", "TestAttackAuthorityOtherThanSNI", "TestAttackSecondHostOnKeepAlive", // names
		"TestAttackSpecialAddresses", "TestAttackHostPorts", "TestAttackDenyWins", // addresses
		"TestAttackFlowsOutliveThePolicy", "TestAttackFlowsUnderABorrowedName", // tightening
	}
	out, err := harness.AttachedRun(t.Context(), rows...).CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, harness.Tail(string(out), 40_000))
	}
	for _, row := range rows {
		if !strings.Contains(string(out), "--- PASS: "+row+" ") {
			t.Errorf("%s did not pass against attached boxes", row)
		}
	}
}
