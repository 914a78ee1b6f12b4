package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"boxgate/rule"
	"boxgate/rule/kinds"
)

// ruleOf returns the rule that flags make for a.test.
func ruleOf(t *testing.T, flags ...string) (string, error) {
	t.Helper()
	var r hostRule
	cmd := &cobra.Command{}
	r.register(cmd)
	if err := cmd.ParseFlags(flags); err != nil {
		t.Fatal(err)
	}
	_, rules, err := r.change("a.test", strings.NewReader("from standard input\n"))
	return string(rules), err
}

// TestFlagsOfAHostsRule: flags make the members of their kinds, in whatever order they are given.
func TestFlagsOfAHostsRule(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flags string
		want  string // of the rule, or of the error
	}{
		{"--header X-A=1 --header X-B=- --header X-A=2", `"headers":{"X-A":"2","X-B":"from standard input"},"scrub":false`},
		{"--scrub --secret X-A=k --header X-B=1", `"headers":{"X-A":{"secret":"k"},"X-B":"1"},"scrub":true`},
		{"--secret X-A=Bearer_{k}_x", `"headers":{"X-A":{"prefix":"Bearer_","secret":"k","suffix":"_x"}},"scrub":false`},
		{"--placeholder A=k --placeholder B=m --client-certificate c", `"client_certificate":{"secret":"c"},"placeholders":{"A":{"secret":"k"},"B":{"secret":"m"}},"scrub":false`},
		{"--forward-url https://one.test --forward-url https://p.test", `"forward_url":"https://p.test","scrub":false`},
		{"--upstream-tls legacy --client-tls legacy --lenient", `"client_tls":"legacy","lenient":true,"scrub":false,"upstream_tls":"legacy"`},
		{"--meter anthropic --secret X-Api-Key=k", `"headers":{"X-Api-Key":{"secret":"k"}},"meter":"anthropic","scrub":false`},
		{"--lenient=false --header X-A=1", `"headers":{"X-A":"1"},"scrub":false`},
		{"--secret X-A=k --header X-A=canary", `the header "X-A" is given twice`},
		{"--secret X-A=k --secret X-A=m", `the header "X-A" is given twice`},
		{"--header canary", "--header wants NAME=…"},
		{"--placeholder =canary", "--placeholder wants NAME=…"},
		{"--header X-A=@/nowhere", "/nowhere"},
		{"--forward-url=", `no rule given for "a.test": use --header, --secret, --placeholder, `},
	} {
		rules, err := ruleOf(t, strings.Fields(tt.flags)...)
		if want := `{"a.test":{` + tt.want + `}}`; err == nil && rules != want {
			t.Errorf("%s: %s, want %s", tt.flags, rules, want)
		}
		if err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "canary")) {
			t.Errorf("%s: %v, want %s", tt.flags, err, tt.want)
		}
	}
}

// TestFlagsOfAllKinds: each flag has a usage and a name that no other flag has.
func TestFlagsOfAllKinds(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{"box": true, "scrub": true}
	for _, k := range kinds.Shown() {
		flagged, ok := k.(rule.Flagged)
		if !ok {
			continue
		}
		for _, f := range flagged.Flags() {
			if seen[f.Name] || f.Name == "" || f.Usage == "" || f.Secret && f.Names == "" {
				t.Errorf("%s has the flag %+v", k.Key(), f)
			}
			seen[f.Name] = true
		}
	}
}

// TestHeadersTable: the lines of kinds are in the right columns.
func TestHeadersTable(t *testing.T) {
	t.Parallel()
	var a headersAnswer
	err := json.Unmarshal([]byte(`{"rules": {
		"a.test": {"headers": [{"name": "X-A", "secret": "k"}, {"name": "X-B"}], "remove": ["X-C"], "placeholders": [{"variable": "KEY", "secret": "m"}], "scrub": true},
		"b.test": {"headers": [], "alternatives": [{"match": {"methods": ["GET"]}, "headers": [], "deny": true}, {"headers": [], "forward_url": "https://p.test"}]}}}`), &a)
	var out bytes.Buffer
	if err != nil || renderHeaders(&out, a) != nil {
		t.Fatal(err)
	}
	want := []string{"HOST MATCH HEADERS PLACEHOLDERS SCRUB", "a.test - X-A (k), X-B, -X-C KEY (m) yes", "b.test GET (denied) - no", "b.test - (forwarded to https://p.test) - no", ""}
	for i, line := range strings.Split(out.String(), "\n") {
		if got := strings.Join(strings.Fields(line), " "); i >= len(want) || got != want[i] {
			t.Errorf("line %d: %q", i, got)
		}
	}
}
