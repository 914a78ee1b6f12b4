package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// boxesAreAttached is a variable of the environment: if it is set, the boxes of tests are made by somebody else, whose
// root has every capability in them, and attached.
const boxesAreAttached = "BOXGATE_TEST_ATTACHED"

// attach is create for a box that somebody else makes. It trusts its CA as docs/attach.md says.
func (w *world) attach(body map[string]any) string {
	w.t.Helper()
	f := newForeignBox(w.t)
	body["pid"] = f.pid
	var made struct{ ID string }
	if err := w.Client.Do(w.t.Context(), "POST", "/v2/box/attach", body, &made); err != nil {
		w.t.Fatalf("attaching a box: %v", err)
	}
	text, code := w.gatewayCommand("ca", "--box", made.ID, "--bundle")
	bundle := filepath.Join(w.t.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, []byte(text), 0o600); err != nil || code != 0 {
		w.t.Fatalf("gateway ca: %d %v %s", code, err, last(text, 500))
	}
	f.env = []string{"SSL_CERT_FILE=" + bundle, "CURL_CA_BUNDLE=" + bundle, "REQUESTS_CA_BUNDLE=" + bundle}
	w.foreign.Store(made.ID, f)
	return made.ID
}

// An attached box is held as a launched one is, though its root has every say in its own network.
func TestAttacksFromAttachedBoxes(t *testing.T) {
	t.Parallel()
	rows := []string{
		"TestAttackForgedSource", "TestAttackForgedNeighbours", // spoofing
		"TestAttackFragmentsOptionsAndTunnels", "TestAttackMalformedPackets", "TestAttackICMPTunnel", "TestAttackUDP", // the kernel
		"TestAttackAllowedNameAtForeignAddress", "TestAttackAuthorityOtherThanSNI", "TestAttackSecondHostOnKeepAlive", // names
		"TestAttackSpecialAddresses", "TestAttackHostPorts", "TestAttackDenyWins", // addresses
		"TestAttackFlowsOutliveThePolicy", "TestAttackFlowsUnderABorrowedName", // tightening
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^("+strings.Join(rows, "|")+")$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), boxesAreAttached+"=1", asGateway+"=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, last(string(out), 8000))
	}
	for _, row := range rows {
		if !strings.Contains(string(out), "--- PASS: "+row+" ") {
			t.Errorf("%s did not pass against attached boxes", row)
		}
	}
}
