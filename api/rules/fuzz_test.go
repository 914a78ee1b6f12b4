package rules_test

import (
	"encoding/json"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/rules"
	"boxgate/policy"
)

// FuzzRules sends random bodies to the endpoints that take one: each is answered in JSON, without a failure of the gateway, and a
// policy or rules that were refused are not in force.
func FuzzRules(f *testing.F) {
	for i, body := range []string{
		`{"mode":"custom","allowed_domains":["*.example.com"],"version":1}`, `{"mode":"deny-all","leases":[{"action":"allow","entry":"a.example"}]}`,
		`{"named":"web"}`, `{"allow":{"a.example":[{"transform":[{"headers":{"A":"b"}}]}]}}`, `"allow-all"`,
		`{"action":"allow","entries":["a.example:443"],"expires_in":3600}`, `{"attach_headers":{"a.example":{"A":"b"}}}`, `{"a.example":null}`,
		`{"a.example":{"headers":{"A":{"secret":"known","prefix":"x "}},"placeholders":{"K":"v"},"scrub":true}}`, `{"attach_headers":1}`,
		`null`, `[[[`, `{"a":{"a":1,"a":2}}`, "{\"\\ud800\":1}", `1e999`,
	} {
		f.Add(uint8(i), []byte(body))
	}
	s := serve(f)
	id := s.create(f, api.CreateRequest{})
	var calls []rest.Route
	for _, rt := range (&rules.Endpoints{}).Routes() {
		if rt.Request != nil {
			calls = append(calls, rt)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		rt := calls[int(which)%len(calls)]
		before := len(s.Changes())
		policyBefore, rulesBefore := s.state(t, id).Version, s.host.ByID[policy.BoxID(id)].Rules.Version
		got := s.Call(t, rt.Method, strings.NewReplacer("{id}", id, "{name}", "web").Replace(rt.Path), string(body))
		if got.StatusCode >= 500 || !json.Valid([]byte(got.Text)) {
			t.Errorf("%s %s with %q: %s %s", rt.Method, rt.Path, body, got.Status, got.Text)
		}
		changed := s.state(t, id).Version != policyBefore || s.host.ByID[policy.BoxID(id)].Rules.Version != rulesBefore
		if got.StatusCode >= 400 && (changed || len(s.Changes()) != before) {
			t.Errorf("%s %s with %q: %s, and it had an effect", rt.Method, rt.Path, body, got.Status)
		}
	})
}
