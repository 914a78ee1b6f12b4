package attack

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// The holder of an API key opens a box as far as a policy can: it reaches no more than the operator's ceiling, also in
// the kernel. A box created without a policy gets the operator's default.
func TestAttackBeyondTheCeiling(t *testing.T) {
	t.Parallel()
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Policy.Default.Spec = policy.Spec{Mode: policy.ModeDenyAll}
		c.Policy.Ceiling.Spec = policy.Spec{
			Mode: policy.ModeCustom, DeniedDomains: []string{"evil.example.net"},
			Rules: []match.RequestRule{{Hosts: []string{"api.example.com"}, Methods: []string{"DELETE"}, Action: "deny"}},
		}
	})
	evil4 := w.V4("evil.example.net").String()
	everything := map[string]any{"mode": "allow-all"}
	box := w.Create(map[string]any{"network_policy": everything})
	allowed := func(box, line string, want int) {
		t.Helper()
		if out, code := w.Sh(box, line); code != want {
			t.Errorf("%s: exit status %d, want %d\n%s", line, code, want, out)
		}
	}
	allowed(box, "curl -sS -m 30 https://api.example.com/echo", 0)
	for _, p := range []map[string]any{
		everything, harness.Custom("evil.example.net", "api.example.com"), {"mode": "custom", "allowed_cidrs": []string{evil4 + "/32"}, "allowed_domains": []string{"*"}},
		{"mode": "custom", "precedence": "specific", "allowed_domains": []string{"*", "evil.example.net"}, "denied_domains": []string{"*.example.net"}},
	} {
		w.SetPolicy(box, p)
		allowed(box, "curl -k -sS -m 30 https://evil.example.net/ceiling", 35)
		allowed(box, "curl -k -sS -m 30 --resolve evil.example.net:443:"+evil4+" https://evil.example.net/ceiling", 35)
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Name == "evil.example.net" && e.Reason == name.ReasonDeniedDomain })
	if e.Rule != "policy.ceiling: evil.example.net" {
		t.Errorf("the log says %+v", e)
	}
	if got := w.Net.Received("evil.example.net"); len(got) > 0 {
		t.Errorf("beyond the ceiling: %+v", got)
	}
	w.SetPolicy(box, everything)
	if out, _ := w.Sh(box, "curl -sS -m 30 -o /dev/null -w '%{http_code}' -X DELETE https://api.example.com/ceiling"); out != "403" {
		t.Errorf("a request that the ceiling denies: %s", out)
	}

	var view struct {
		NetworkPolicy policy.Spec        `json:"network_policy"`
		Warnings      []document.Problem `json:"warnings"`
	}
	var raw json.RawMessage
	body := map[string]any{"network_policy": harness.Custom("evil.example.net")}
	if err := w.Client.Do(t.Context(), "POST", "/v2/box", body, &raw); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &view); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(view.Warnings, func(p document.Problem) bool { return strings.Contains(p.Message, "policy.ceiling") }) {
		t.Errorf("no warning of the ceiling: %s", raw)
	}

	plain := w.Create(map[string]any{})
	if err := w.Client.Do(t.Context(), "GET", api.BoxPath(plain), nil, &view); err != nil || view.NetworkPolicy.Mode != policy.ModeDenyAll {
		t.Errorf("a box without a policy: %v %+v", err, view.NetworkPolicy)
	}
	allowed(plain, "curl -sS -m 30 https://api.example.com/", 35)
}

// A ceiling of addresses applies in the kernel: it never forwards to other addresses, whatever the policy.
func TestAttackBeyondACeilingOfAddresses(t *testing.T) {
	t.Parallel()
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Policy.Ceiling.Spec = policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{"198.51.100.10/32"}} // that of api.example.com
	})
	for name, p := range map[string]map[string]any{
		"allow-all": {"mode": "allow-all"}, "addresses": {"mode": "custom", "allowed_cidrs": []string{"0.0.0.0/1", "128.0.0.0/1"}},
		"denied only": {"mode": "custom", "denied_domains": []string{"other.example.org"}},
	} {
		box := w.Create(map[string]any{"network_policy": p})
		for host, want := range map[string]bool{"api.example.com": true, "evil.example.net": false} {
			if out, code := w.Sh(box, "curl -4 -k -sS -m 30 -o /dev/null https://"+host+"/"); (code == 0) != want {
				t.Errorf("%s: %s: exit status %d\n%s", name, host, code, out)
			}
		}
		// On a port that the proxy does not handle.
		if _, code := w.Sh(box, fmt.Sprintf("curl -s -m 30 telnet://%s:7 </dev/null", w.V4("evil.example.net"))); code != 7 {
			t.Errorf("%s: port 7 beyond the ceiling: exit status %d", name, code)
		}
		if got := w.Net.Received("evil.example.net"); len(got) > 0 {
			t.Errorf("%s: beyond the ceiling: %+v", name, got)
		}
	}
}
