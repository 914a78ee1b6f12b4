package legacytls_test

import (
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
)

// TestLegacyTLSRules: the members have one value, say nothing about requests that go elsewhere, and apply to the hosts of their pattern only.
func TestLegacyTLSRules(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		`{"upstream_tls": "legacy"}`: "",
		`{"client_tls": "legacy"}`:   "",
		`{"upstream_tls": "legacy", "client_tls": "legacy", "headers": {"A": "b"}}`:  "",
		`{"client_tls": "legacy", "forward_url": "https://p.test"}`:                  "",
		`{"upstream_tls": "modern"}`:                                                 `/a.test/upstream_tls: is not "legacy"`,
		`{"client_tls": ""}`:                                                         `/a.test/client_tls: is not "legacy"`,
		`{"upstream_tls": true}`:                                                     "/a.test/upstream_tls: is true or false",
		`{"upstream_tls": "legacy", "X-Key": "value"}`:                               "unknown key",
		`{"upstream_tls": "legacy", "deny": true}`:                                   "refuses the requests",
		`{"upstream_tls": "legacy", "forward_url": "https://p.test"}`:                "forward_url sends the requests to another one",
		`[{"match": {"methods": ["GET"]}, "headers": {}}, {"client_tls": "legacy"}]`: "",
	} {
		rules, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
		if want != "" || err != nil {
			if err == nil || want == "" || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", entry, err, want)
			}
			continue
		}
		spec := policy.Spec{Mode: policy.ModeAllowAll}
		compiled, err := policy.Compile(spec, policy.Options{Version: 1, Protected: &name.Protected{}, Headers: rules})
		if err != nil {
			t.Fatalf("%s: %v", entry, err)
		}
		a, b := mustName(t, "a.test"), mustName(t, "b.test")
		if got := compiled.LegacyClients(a, 443); got != strings.Contains(entry, "client_tls") {
			t.Errorf("%s: clients with legacy TLS are accepted: %v", entry, got)
		}
		if compiled.LegacyClients(b, 443) || compiled.LegacyClients(a, 8443) || !compiled.Intercepts(a, 443) || compiled.Intercepts(b, 443) {
			t.Errorf("%s: applies elsewhere", entry)
		}
		rule, _ := compiled.HeaderRule(policy.Request{Stage: policy.StageHTTP, Name: a, Port: 443, Method: "POST", Path: "/"})
		if got := rule.OnConnections().LegacyUpstream; got != strings.Contains(entry, "upstream_tls") {
			t.Errorf("%s: the server is offered legacy TLS: %v", entry, got)
		}
	}
	if (*policy.Compiled)(nil).LegacyClients(mustName(t, "a.test"), 443) {
		t.Error("clients with legacy TLS are accepted without a policy")
	}
}

func mustName(t *testing.T, text string) name.Name {
	t.Helper()
	n, err := name.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
