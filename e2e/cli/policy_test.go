package cli

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"boxgate/e2e/harness"
)

// TestPolicyAllowAndDeny: changes by the commands apply to the box, and the rest of the policy stays.
func TestPolicyAllowAndDeny(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "demo", "network_policy": harness.Custom("api.example.com")})
	w.Create(map[string]any{"name": "closed", "network_policy": map[string]any{"mode": "deny-all"}})
	reaches := func(host, reason string) {
		t.Helper()
		for _, box := range []string{"demo", "closed"} {
			harness.Contains(t, w.Run(0, nil, "", "policy", "explain", "--resolve=false", box, host), `"reason": "`+reason+`"`)
		}
	}
	for _, box := range []string{"demo", "closed"} {
		harness.Contains(t, w.Run(0, nil, "", "policy", "allow", box, "www.example.net:443", "preset:anthropic"), "www.example.net:443: allowed", "api.anthropic.com:443: allowed", "in force")
	}
	reaches("www.example.net", "allowed_domain")
	reaches("api.anthropic.com", "allowed_domain")
	reaches("api.openai.com", "not_allowed")
	for _, box := range []string{"demo", "closed"} {
		harness.Contains(t, w.Run(0, nil, "", "policy", "deny", box, "www.example.net"), "www.example.net: denied", "in force")
		harness.Contains(t, w.Run(0, nil, "", "policy", "deny", box, "www.example.net"), "nothing to do")
	}
	reaches("www.example.net", "denied_domain")
	reaches("api.anthropic.com", "allowed_domain")
	harness.Contains(t, w.Run(0, nil, "", "policy", "explain", "--resolve=false", "demo", "api.example.com"), "allowed_domain")
	harness.Contains(t, w.Run(0, nil, "", "policy", "diff", "demo", "preset:anthropic"), "- denied_domains: www.example.net", "- allowed_domains: api.example.com")
	harness.Contains(t, w.Run(0, []string{"VISUAL=", "EDITOR=sed -i s/api.anthropic.com/api.openai.com/"}, "", "policy", "edit", "closed"), "+ allowed_domains: api.openai.com:443")
	harness.Contains(t, w.Run(0, nil, "", "policy", "explain", "--resolve=false", "closed", "api.openai.com"), "allowed_domain")
	harness.Contains(t, w.Run(0, nil, "", "box", "create", "--name", "fresh", "--policy", "preset:pypi,npm"), "fresh", "custom")
	harness.Contains(t, w.Run(0, nil, "", "policy", "explain", "--resolve=false", "fresh", "registry.npmjs.org"), "allowed_domain")
	w.Run(0, nil, "", "policy", "set", "fresh", `{"mode":"custom","precedence":"specific","allowed_domains":["*"],"denied_domains":["*.example.com"]}`)
	harness.Contains(t, w.Run(0, nil, "", "policy", "allow", "fresh", "api.example.com"), "api.example.com: allowed", "in force")
	harness.Contains(t, w.Run(0, nil, "", "policy", "explain", "--resolve=false", "fresh", "api.example.com"), `"rule": "api.example.com"`, `"beaten": [`, `"*.example.com"`)
	harness.Contains(t, w.Run(0, nil, "", "policy", "diff", "fresh", "preset:npm"), "- precedence: specific")
	w.Run(0, nil, "", "policy", "set", "fresh", "preset:npm")
	const metadata = "169.254.169.254"
	harness.Contains(t, w.Run(0, nil, "", "policy", "allow", "fresh", metadata), metadata+": added, but it has no effect: ")
	harness.Contains(t, w.Run(0, nil, "", "policy", "allow", "fresh", metadata), metadata+": nothing to do: it is in the policy already, and has no effect: no policy opens this range")
	harness.Contains(t, w.Run(0, nil, "", "policy", "allow", "closed", metadata, "--for", "1h"), metadata+": no effect: no policy opens this range")
}

// TestPolicyNamed: boxes follow a named policy. The commands change it for all of them, and refuse to for one.
func TestPolicyNamed(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	harness.Contains(t, w.Run(0, nil, "", "policy", "named", "set", "web", `{"mode":"custom","allowed_domains":["api.example.com"]}`), "Version 1 of the policy web is in force, for 0 boxes.")
	w.Run(0, nil, "", "box", "create", "--name", "demo", "--policy", "named:web")
	w.Create(map[string]any{"name": "other", "network_policy": map[string]any{"mode": "deny-all"}})
	harness.Contains(t, w.Run(0, nil, "", "policy", "diff", "other", "named:web"), "+ allowed_domains: api.example.com")
	harness.Contains(t, w.Run(0, nil, "", "policy", "set", "other", "named:web"), `"named": "web"`)
	harness.Contains(t, w.Run(0, nil, "", "policy", "named", "set", "web", "preset:npm"), "Version 2 of the policy web is in force, for 2 boxes.")
	for _, box := range []string{"demo", "other"} {
		harness.Contains(t, w.Run(0, nil, "", "policy", "explain", "--resolve=false", box, "registry.npmjs.org"), `"reason": "allowed_domain"`, `"named": "web"`)
		harness.Contains(t, w.Run(0, nil, "", "policy", "explain", "--resolve=false", box, "api.example.com"), `"reason": "not_allowed"`)
		harness.Contains(t, w.Run(1, nil, "", "policy", "allow", box, "api.example.com"), `follows the named policy "web"`)
	}
	harness.Contains(t, w.Run(0, nil, "", "policy", "named", "list"), "web", "custom", "demo other")
	harness.Contains(t, w.Run(1, nil, "", "policy", "named", "rm", "web"), "demo, other")
	harness.Contains(t, w.Run(1, nil, "", "policy", "set", "demo", "named:wed"), `no named policy "wed"`)
	w.Run(0, nil, "", "policy", "set", "demo", "deny-all")
	w.Run(0, nil, "", "box", "rm", "other")
	w.Run(0, nil, "", "policy", "named", "rm", "web")
	harness.Contains(t, w.Run(0, nil, "", "audit"), "PUT /v2/box/settings/network-policies/{name} 200", `{"named_policy":{"deleted":true,"name":"web","policy":{"version":2,`)
}

// TestPolicyChangesMeet: concurrent changes to one policy are all kept.
func TestPolicyChangesMeet(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "demo", "network_policy": harness.Custom("api.example.com")})
	const clients = 6
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			if out, code := w.GatewayCommand("policy", "allow", "demo", fmt.Sprintf("host%d.example.net", i)); code != 0 {
				t.Errorf("exit %d: %s", code, out)
			}
		})
	}
	wg.Wait()
	now := w.Run(0, nil, "", "policy", "get", "demo")
	for i := range clients {
		harness.Contains(t, now, fmt.Sprintf("host%d.example.net", i))
	}
}

// TestStatus: the output of `gateway status` for a gateway with a box, and its host.
func TestStatus(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	w.MustSh(box, "getent ahostsv4 evil.example.net || true")
	w.Until("the denial is counted", func() bool { return strings.Contains(w.Run(0, nil, "", "log", "--denied"), "not_allowed") })
	harness.Contains(t, w.Run(0, nil, "", "status"), "revision ", "1 idle", "not_allowed; see `gateway log --denied`", "host ")
	harness.Contains(t, w.Run(0, nil, "", "--json", "status"), `"idle":1`, `"not_allowed":`, `"host_checks":`)
	harness.Contains(t, w.Run(0, nil, "", "status", "--admin", w.Socket), "1 idle")
}

// TestPolicyForATime: a temporary entry is shown with its remaining time, is kept by commands that change other
// entries, and can be ended early.
func TestPolicyForATime(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "demo", "network_policy": harness.Custom("api.example.com")})
	explains := func(host, reason string) {
		t.Helper()
		harness.Contains(t, w.Run(0, nil, "", "policy", "explain", "--resolve=false", "demo", host), `"reason": "`+reason+`"`)
	}
	harness.Contains(t, w.Run(0, nil, "", "policy", "allow", "demo", "www.example.net", "--for", "1h"), "www.example.net: allowed until", "in force")
	harness.Contains(t, w.Run(0, nil, "", "policy", "deny", "demo", "api.example.com", "--for", "30m"), "api.example.com: denied until")
	explains("www.example.net", "allowed_domain")
	explains("api.example.com", "denied_domain")
	w.Run(0, nil, "", "policy", "allow", "demo", "cdn.example.org")
	harness.Contains(t, w.Run(0, nil, "", "policy", "get", "demo"), `"expires_in"`, "www.example.net", "cdn.example.org")
	harness.Contains(t, w.Run(0, nil, "", "policy", "leases", "demo"), "www.example.net", "allow", "deny", "LEFT")
	harness.Contains(t, w.Run(2, nil, "", "policy", "allow", "demo", "a.example.com", "--for", "1ms"), "too short")
	w.Run(0, nil, "", "policy", "end", "demo", "api.example.com")
	explains("api.example.com", "allowed_domain")
	harness.Contains(t, w.Run(1, nil, "", "policy", "end", "demo", "api.example.com"), "no such temporary entry")
	w.Run(0, nil, "", "policy", "set", "demo", `{"mode":"custom","allowed_domains":["api.example.com"]}`)
	explains("www.example.net", "not_allowed")
	explains("cdn.example.org", "not_allowed")
	harness.Contains(t, w.Run(0, nil, "", "policy", "allow", "demo", "api.example.com", "--for", "1s"), "allows it already")
	w.Until("it has ended", func() bool { return !strings.Contains(w.Run(0, nil, "", "policy", "get", "demo"), "leases") })
}
