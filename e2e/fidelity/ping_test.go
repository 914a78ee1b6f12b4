package fidelity

import (
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// The debian image's ping works without CAP_NET_RAW, which boxes do not have: to allowed addresses only.
func TestPing(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	allowed := []string{w.V4("plain.example.com").String(), w.V6("plain.example.com").String()}
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "custom", "allowed_cidrs": []string{allowed[0] + "/32", allowed[1] + "/128"}}})
	for _, addr := range allowed {
		if out := w.MustSh(box, "ping -n -c 1 -W 60 "+addr); !strings.Contains(out, "1 received") {
			t.Errorf("ping %s: %s", addr, out)
		}
	}
	if out, code := w.Sh(box, "ping -n -c 1 -W 60 "+harness.AttackerAt(7)[0].String()); code == 0 || !strings.Contains(out, "Packet filtered") {
		t.Errorf("ping of an address that is not allowed: %d %s", code, out)
	}
}
