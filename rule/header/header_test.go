package header_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/header"
)

// secrets maps names to values. Missing secrets are unavailable.
type secrets map[string]string

func (s secrets) Text(_ context.Context, n string) (string, error) {
	if v, ok := s[n]; ok {
		return v, nil
	}
	return "", errors.New("not available: " + n)
}

// rulesOf reads the rules of a host.
func rulesOf(t *testing.T, entry string) policy.HeaderRule {
	t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
	if err != nil {
		t.Fatal(entry, err)
	}
	return rules[0]
}

// TestHeaderFields: each request gets the current values with their prefixes and suffixes. The secret in a value is known, as it must be masked
// as well. Without sources, requests share the fields.
func TestHeaderFields(t *testing.T) {
	t.Parallel()
	r := rulesOf(t, `{"headers": {"authorization": {"secret": "s", "prefix": "Bearer ", "suffix": " x"}, "x-plain": "literal", "x-whole": {"secret": "s"},
		"x-basic": {"secret": "s", "encode": "basic", "user": "me"}}, "remove": ["x-debug"]}`)
	setter := rule.Requests(r.Effects).Headers
	for _, value := range []string{"first", "second"} {
		fields, err := setter.HeaderFields(t.Context(), secrets{"s": value})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for i := range fields {
			f := &fields[i]
			got += fmt.Sprintf("%s: %s [%s] %v\n", f.Name, f.Value.Reveal(), f.Bare(), f.Remove)
		}
		basic := rule.BasicCredentials("me", value)
		want := "Authorization: Bearer " + value + " x [" + value + "] false\nX-Basic: " + basic + " [" + basic + "] false\nX-Debug:  [] true\n" +
			"X-Plain: literal [literal] false\nX-Whole: " + value + " [" + value + "] false\n"
		if got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
	literal := rule.Requests(rulesOf(t, `{"X-A": "a", "X-B": "b"}`).Effects).Headers
	one, _ := literal.HeaderFields(t.Context(), nil)
	two, err := literal.HeaderFields(t.Context(), nil)
	if err != nil || len(one) != 2 || &one[0] != &two[0] {
		t.Errorf("literals are not shared: %v, %v, %v", one, two, err)
	}
}

// TestHeaderWithoutItsSecret: if the value of a source is unavailable or invalid, there are no fields, and the error does not quote it.
func TestHeaderWithoutItsSecret(t *testing.T) {
	t.Parallel()
	setter := rule.Requests(rulesOf(t, `{"headers": {"X-A": {"secret": "s"}, "X-B": "literal"}}`).Effects).Headers
	for _, s := range []secrets{{}, {"s": "canary\r\nHost: evil"}} {
		fields, err := setter.HeaderFields(t.Context(), s)
		if err == nil || fields != nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v, %v", s, fields, err)
		}
	}
}

// TestHeadersOfARule: fields that a rule sets and removes are read, written and shown. A rule that only removes sets no value.
func TestHeadersOfARule(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]struct {
		written, shown, line string
		values               bool
	}{
		`{"x-a": "literal", "remove": "a header of that name"}`: {`{"a.test":{"headers":{"Remove":"a header of that name","X-A":"literal"}}}`, `[{"name":"Remove"},{"name":"X-A"}]`, "Remove, X-A", true},
		`{"headers": {"x-a": {"secret": "k", "prefix": "p"}}, "remove": ["x-c", "X-B"]}`: {
			`{"a.test":{"headers":{"X-A":{"prefix":"p","secret":"k","suffix":""}},"remove":["X-B","X-C"]}}`, `[{"name":"X-A","secret":"k"}]`, "X-A (k)", true},
		`{"remove": ["cookie"]}`: {`{"a.test":{"remove":["Cookie"]}}`, `[]`, "", false},
	} {
		r := rulesOf(t, entry)
		written, err := policy.MarshalHeaderRules([]policy.HeaderRule{r})
		if err != nil || string(written) != want.written {
			t.Errorf("%s is written as %s, %v", entry, written, err)
		}
		shown, err := json.Marshal(r.Effects[0].Show())
		if line := (header.Kind{}).Line(shown); err != nil || string(shown) != want.shown || line != want.line {
			t.Errorf("%s is shown as %s: %q, %v", entry, shown, line, err)
		}
		if !r.Applies() || rule.SetsValues(r.Effects) != want.values || rule.ScrubsByDefault(r.Effects) {
			t.Errorf("%s: applies %v, sets values %v", entry, r.Applies(), rule.SetsValues(r.Effects))
		}
	}
	removed := (header.Kind{}).Members()[0].Line
	if got := removed([]byte(`["X-B","X-C"]`)); got != "-X-B, -X-C" || removed([]byte(`[]`)) != "" {
		t.Errorf("removed fields are printed as %q", got)
	}
	for _, entry := range []string{`{}`, `{"headers": {}}`, `{"headers": {}, "remove": []}`} {
		if r := rulesOf(t, entry); len(r.Effects) > 0 || r.Applies() {
			t.Errorf("%s: %+v", entry, r)
		}
	}
}

// TestHeaderProblems: each mistake has its pointer, no value is quoted, and mistakes are in the order of the members.
func TestHeaderProblems(t *testing.T) {
	t.Parallel()
	const hmac = `"sign": {"hmac": {"key": "canary", "header": "X-Sig", "template": "{path}"}}`
	for entry, want := range map[string]string{
		`{"headers": ["canary"]}`:                               "/headers: is a list; want an object of header names and values",
		`{"headers": {"Host": "canary"}}`:                       `/headers/Host: "Host" names the destination`,
		`{"headers": {"X-A": "canary", "x_a": "canary"}}`:       `/headers/x_a: "X-A" and "x_a" are the same header to a server; keep one of them`,
		`{"headers": {"X-A": "canary\n"}}`:                      `/headers/X-A: the value of "X-A"`,
		`{"headers": {"X-A": {"secret": "canary key"}}}`:        "/headers/X-A/secret: is not the name of a secret",
		`{"remove": "X-A", "scrub": true}`:                      "/remove: is a string; want a list of strings",
		`{"remove": ["X-A", "Host"]}`:                           `/remove/1: "Host" names the destination that the policy judges, and cannot be removed`,
		`{"remove": ["X-A", "x_a"]}`:                            `/remove: "X_a" is there twice`,
		`{"headers": {"X_A": "canary"}, "remove": ["X-a"]}`:     `/remove: "X-A" is set as well`,
		`{"headers": {"X_sig": "canary"}, ` + hmac + `}`:        "/headers/X_sig: is set by the signature",
		`{"remove": ["X-Sig"], ` + hmac + `}`:                   "/headers/X-Sig: is set by the signature",
		`{"remove": [1], "scrub": 1, "headers": {"Host": "x"}}`: `/remove/0: is a number; want a string; /scrub: is a number; want true or false; /headers/Host: "Host" names the destination`,
	} {
		_, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
		if _, ok := errors.AsType[*document.InvalidError](err); !ok {
			t.Errorf("%s is accepted: %v", entry, err)
			continue
		}
		if got := strings.ReplaceAll(err.Error(), "/a.test", ""); !containsAll(got, strings.Split(want, "; /")) || strings.Contains(got, "canary") {
			t.Errorf("%s: %s, want %s", entry, got, want)
		}
	}
}

// containsAll reports whether a text has all parts, in their order.
func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		_, rest, found := strings.Cut(s, p)
		if !found {
			return false
		}
		s = rest
	}
	return true
}

// TestPlainHeaders: headers in a dialect without secrets of the gateway cannot name one.
func TestPlainHeaders(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"x-b": "1", "X-A": {"value": "2"}}`: "X-A=2 X-B=1 ",
		`{"X-A": {"secret": "k"}}`:            "/t/X-A: is not text; name secrets of the gateway in attach_headers",
		`{"Host": "x"}`:                       "/t/Host: ",
	} {
		var ps document.Problems
		v, _ := document.Parse([]byte(text), &ps)
		got := ""
		for _, h := range header.ReadPlain("/t", v, &ps) {
			got += h.Name + "=" + h.Literal.Reveal() + " "
		}
		if err := ps.Err(); err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if effect := header.New([]header.Header{{Name: "X-A", Value: rule.Value{Literal: name.NewSecret("a")}}}); len(header.Of([]rule.Effect{effect})) != 1 || header.Of(nil) != nil {
		t.Error("header fields do not come back")
	}
}
