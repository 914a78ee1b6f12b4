package meter_test

import (
	"errors"
	"strings"
	"testing"

	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
)

// metered returns the effect of the rule of one host.
func metered(t *testing.T, entry string) rule.Metered {
	t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
	if err != nil {
		t.Fatalf("%s: %v", entry, err)
	}
	return rules[0].OnRequests().Meter
}

// TestModels: deny wins, case does not matter, and without allow all others are allowed.
func TestModels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ models, allowed, denied string }{
		{`{"allow": ["claude-*"]}`, "claude- claude-x CLAUDE-X", "claude xclaude-x gpt claude"},
		{`{"allow": ["claude-*"], "deny": ["claude-opus*", "*-1"]}`, "claude-x claude-1x", "claude-opus Claude-Opus-4 claude-x-1"},
		{`{"deny": ["GPT-4"]}`, "gpt-4o gpt-5", "gpt-4 GPT-4"},
		{`{"allow": ["*"]}`, "a b/c:free", ""},
		{`{"allow": ["a*b*c"]}`, "abc aXbYc abbc abcbc", "ab ac acb abcd"},
		{`{"allow": ["*ab"]}`, "ab aab xab", "aba b"},
		{`{"allow": ["a*a"]}`, "aa aba", "a"},
	} {
		m := metered(t, `{"meter": "openai", "models": `+c.models+`}`)
		if m.Vendor() != llm.OpenAI {
			t.Errorf("the vendor is %s", m.Vendor())
		}
		for _, name := range strings.Fields(c.allowed) {
			if !m.AllowsModel(name) {
				t.Errorf("%s denies %s", c.models, name)
			}
		}
		for _, name := range strings.Fields(c.denied) {
			if m.AllowsModel(name) {
				t.Errorf("%s allows %s", c.models, name)
			}
		}
	}
	if m := metered(t, `{"meter": "google", "headers": {}}`); !m.AllowsModel("any") || m.Vendor() != llm.Google {
		t.Errorf("%+v", m)
	}
}

// TestMistakes: each is named, with the place where it is.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		`{"meter": "azure", "headers": {}}`:                                             `/a.test/meter is not one of anthropic, openai, google`,
		`{"meter": "", "headers": {}}`:                                                  `/a.test/meter is not one of`,
		`{"meter": true}`:                                                               `/a.test/meter`,
		`{"meter": "openai", "X-A": "b"}`:                                               `/a.test/X-A`,
		`{"models": {"allow": ["a"]}}`:                                                  `/a.test/models needs "meter" beside it`,
		`{"meter": "openai", "models": {}}`:                                             `/a.test/models has neither "allow" nor "deny"`,
		`{"meter": "openai", "models": []}`:                                             `/a.test/models`,
		`{"meter": "openai", "models": {"allow": []}}`:                                  `/a.test/models/allow is an empty list`,
		`{"meter": "openai", "models": {"allow": ["a", 1]}}`:                            `/a.test/models/allow/1`,
		`{"meter": "openai", "models": {"allow": ["a", "A"]}}`:                          `/a.test/models/allow/1 "A" is there twice`,
		`{"meter": "openai", "models": {"deny": ["a b"]}}`:                              `/a.test/models/deny/0 is not a pattern`,
		`{"meter": "openai", "models": {"deny": [""]}}`:                                 `/a.test/models/deny/0 is not a pattern`,
		`{"meter": "openai", "models": {"deny": ["` + strings.Repeat("a", 200) + `"]}}`: `/a.test/models/deny/0 is not a pattern`,
		`{"meter": "openai", "models": {"block": ["a"]}}`:                               `/a.test/models/block`,
		`{"meter": "openai", "deny": true}`:                                             `/a.test/deny`,
	} {
		_, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
		var invalid *document.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%.100s: %v", entry, err)
			continue
		}
		found := false
		for _, p := range invalid.Problems {
			found = found || strings.HasPrefix(p.Pointer+" "+p.Message, want)
		}
		if !found {
			t.Errorf("%.100s: %v, want %s", entry, err, want)
		}
	}
}

// TestRulesAreReadAgain: what the store has of a rule is the rule.
func TestRulesAreReadAgain(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{`{"meter": "openai", "headers": {}}`, `{"meter": "openai", "models": {"allow": ["b", "A"], "deny": ["c"]}}`, `{"meter": "google", "models": {"deny": ["c*"]}}`} {
		rules, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := policy.MarshalHeaderRules(rules)
		if err != nil {
			t.Fatal(err)
		}
		again, err := policy.ParseHeaderRules(stored, nil)
		if err != nil || !again[0].SendsAlike(&rules[0]) || !again[0].OnRequests().Rewrites() {
			t.Errorf("%s is stored as %s: %v", entry, stored, err)
		}
	}
}

// TestExplanations: an explanation of a request that may ask a model names the body as unknown, as it is not read.
func TestExplanations(t *testing.T) {
	t.Parallel()
	rules, err := policy.ParseHeaderRules([]byte(`{"a.test": {"meter": "openai", "models": {"deny": ["x"]}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := policy.Compile(policy.Spec{Mode: policy.ModeAllowAll}, policy.Options{Version: 1, Headers: rules})
	if err != nil {
		t.Fatal(err)
	}
	for host, unseen := range map[string]map[string]bool{"a.test": {"POST": true, "": true, "GET": false}, "b.test": {"POST": false}} {
		n, err := name.Parse(host)
		if err != nil {
			t.Fatal(err)
		}
		for method, want := range unseen {
			e := c.Explain(policy.Request{Stage: policy.StageHTTP, Box: "b", Name: n, Port: 443, Protocol: policy.TCP, Method: method, Path: "/v1/responses"}, true)
			if !e.Allowed() || e.Unseen.Body != want {
				t.Errorf("%s %s: %+v", method, host, e)
			}
		}
	}
}
