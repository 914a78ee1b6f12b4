package attack

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/doctor"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
)

// diagnose runs `gateway doctor` without watching idle connections.
func diagnose(w *harness.World, box, host string) (d doctor.Diagnosis) {
	w.T.Helper()
	out, code := w.GatewayCommand("doctor", box, host, "--idle", "0s", "--json")
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		w.T.Fatalf("%d %s", code, out)
	}
	return d
}

// TestAttackDiagnosisReachesProtectedAddresses: whatever the name resolves to, and whatever the box may reach, a diagnosis connects to no
// protected address, and to none that the ceiling denies.
func TestAttackDiagnosisReachesProtectedAddresses(t *testing.T) {
	t.Parallel()
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Policy.Ceiling = config.PolicyDocument{Spec: policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"evil.example.net"}}}
	})
	if err := w.Net.AddHost("mixed.example.com", "10.0.0.5", "198.51.100.11"); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}})
	for _, host := range []string{"private.example.net", "metadata.example.net", "private.example.net:80", "evil.example.net", "mixed.example.com"} {
		d := diagnose(w, box, host)
		if len(d.Refused) == 0 {
			t.Errorf("%s: no address is refused: %+v", host, d)
		}
		direct := d.Ways[0]
		if host == "mixed.example.com" {
			if len(direct.Attempts) != 1 || direct.Attempts[0].Address != "198.51.100.11" {
				t.Errorf("%s: connected directly to %+v", host, direct.Attempts)
			}
			continue
		}
		if len(direct.Attempts) != 0 || slices.ContainsFunc(d.Ways, func(w doctor.Way) bool { return w.Works }) {
			t.Errorf("%s: %+v", host, d.Ways)
		}
	}
	for _, host := range []string{"private.example.net", "metadata.example.net", "evil.example.net"} {
		w.NothingReached(host)
	}
}

// TestAttackDiagnosisSendsSecrets: the requests of a diagnosis carry no value of a header rule, neither of the box nor of all boxes.
func TestAttackDiagnosisSendsSecrets(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	rule := map[string]any{"headers": map[string]string{"X-Key": harness.Canary}}
	if err := w.Client.Do(t.Context(), "PUT", "/v2/box/settings/attach-headers", map[string]any{"*.example.com": rule}, nil); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"network_policy": harness.Custom("*.example.com"), "attach_headers": map[string]any{"api.example.com": rule}})
	for _, host := range []string{"api.example.com", "www.example.com"} {
		// Without curl in the box, which sends what the box itself would.
		if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "pause"), nil, nil); err != nil {
			t.Fatal(err)
		}
		if d := diagnose(w, box, host); !d.Ways[0].Works || !d.Ways[1].Works || !d.Ways[2].Works || len(d.Ways) != 3 {
			t.Errorf("%s: %+v", host, d.Ways)
		}
		seen := w.Net.Received(host, testnet.Of(testnet.Request))
		if len(seen) < 6 {
			t.Errorf("%s received %d requests", host, len(seen))
		}
		for _, r := range seen {
			if strings.Contains(fmt.Sprintf("%+v", r), harness.Canary) {
				t.Errorf("%s received the value: %+v", host, r)
			}
		}
	}
}
