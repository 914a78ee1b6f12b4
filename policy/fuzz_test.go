package policy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule/header"

	"boxgate/rule"
	"github.com/google/go-cmp/cmp"
)

// FuzzParseHeaders: accepted headers can be written on the wire unchanged, and parse to the same rules again.
func FuzzParseHeaders(f *testing.F) {
	f.Add("a.test", "Authorization", "Bearer x")
	f.Add("*.a.test:8443", "x_api-key", "")
	f.Add("*", "a", "b")
	f.Add("a.test", "Content_Length", "0")
	f.Add("a.test", "x-a", "b\r\nhost: evil")
	f.Fuzz(func(t *testing.T, host, name, value string) {
		rules, err := ParseHeaders(map[string]map[string]string{host: {name: value}})
		if err != nil {
			checkInvalid(t, err)
			return
		}
		h := header.Of(rules[0].Effects)[0]
		if h.Literal.Reveal() != value || strings.ContainsAny(value+h.Name, "\r\n\x00") || strings.ContainsAny(h.Name, ": ") {
			t.Fatalf("%q: %q", h.Name, value)
		}
		again, err := ParseHeaders(map[string]map[string]string{rules[0].Pattern.String(): {h.Name: value}})
		if err != nil || !sameRules(rules, again) {
			t.Fatalf("%v came back as %v, %v", rules, again, err)
		}
	})
}

// sameRules compares rules, the values of their secrets included.
func sameRules(a, b []HeaderRule) bool {
	return cmp.Equal(a, b, cmp.Comparer(func(a, b name.Pattern) bool { return a == b }))
}

// FuzzParseHeaderRules: accepted rules can be written on the wire and into an environment, and name only known secrets. A compact
// document means the same to [ParseHeaders]. Errors name the place and contain no value.
func FuzzParseHeaderRules(f *testing.F) {
	for _, s := range []string{
		`{"a.test":{"Authorization":"Bearer x"}}`, `{"a.test":{}}`, `{"*.a.test:8443":{"headers":{"x":{"secret":"k","prefix":"Bearer ","suffix":" x"}},"scrub":true}}`,
		`{"a.test":{"placeholders":{"KEY":{"secret":"k"},"B":"v","C":{"value":"w"}}}}`, `{"a.test":{"headers":{"x":{"value":"v"}},"scrub":false}}`,
		`{"a.test":{"x":{"secret":"k"}}}`, `{"a.test":{"headers":{"x":null}}}`, `{"a.test":1}`, `[]`, `{"a.test":{"headers":{"x":{"secret":"other"}}}}`, `{"a.test":{"x":"1","x":"2"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rules, err := ParseHeaderRules(data, rule.Configured(func(name string) bool { return name == "k" }))
		var compact map[string]map[string]string
		if err != nil {
			checkInvalid(t, err)
			return
		}
		if json.Unmarshal(data, &compact) == nil {
			if same, err := ParseHeaders(compact); err != nil || !sameRules(rules, same) {
				t.Fatalf("%s: %v, and as a map %v, %v", data, rules, same, err)
			}
		}
		if _, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: WithTokens(rules, name.NewSecret("key"))}); err != nil {
			t.Fatalf("%s: accepted, but does not compile: %v", data, err)
		}
		for _, r := range rules {
			for _, h := range header.Of(r.Effects) {
				sent := h.Literal.Reveal()
				if h.Source != "" {
					sent = h.Prefix + "value" + h.Suffix
				}
				if match.CheckHeaderValue(sent) != nil || h.Source != "" && (h.Source != "k" || h.Literal.Reveal() != "") || strings.ContainsAny(h.Name, ": \r\n\x00") {
					t.Fatalf("%s: header %q, source %q", data, h.Name, h.Source)
				}
			}
			for _, p := range r.Placeholders() {
				if (p.Source == "") == (p.Literal.Reveal() == "") || match.CheckHeaderValue(p.Literal.Reveal()) != nil || strings.ContainsAny(p.Variable, "=\x00") || p.Variable == "" {
					t.Fatalf("%s: placeholder %q", data, p.Variable)
				}
			}
		}
	})
}

func checkInvalid(t *testing.T, err error) {
	t.Helper()
	invalid, ok := errors.AsType[*document.InvalidError](err)
	if !ok || len(invalid.Problems) == 0 {
		t.Fatalf("want an *InvalidError with problems, got %v", err)
	}
	for _, p := range invalid.Problems {
		if p.Message == "" || p.Pointer != "" && p.Pointer[0] != '/' {
			t.Fatalf("bad problem %+v", p)
		}
	}
}
