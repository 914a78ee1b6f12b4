package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// TestExplainShowsWhatWasBeaten: an explanation lists the most specific name and range that would have decided otherwise.
func TestExplainShowsWhatWasBeaten(t *testing.T) {
	t.Parallel()
	lists := Spec{
		Mode: ModeCustom, AllowedDomains: []string{"*", "ok.evil.test:443", "ok.evil.test:8443"}, DeniedDomains: []string{"*.test:443", "*.evil.test", "*.test"},
		AllowedCIDRs: []string{"9.0.0.0/8", "9.9.9.9"}, DeniedCIDRs: []string{"9.9.0.0/16", "9.9.9.0/24"},
	}
	for _, c := range []struct {
		precedence Precedence
		host, addr string
		verdict    Verdict
		rule       string
		beaten     []string
	}{
		{PrecedenceSpecific, "ok.evil.test", "", Allow, "ok.evil.test:443", []string{"*.evil.test"}},
		{PrecedenceSpecific, "x.evil.test", "", Deny, "*.evil.test", []string{"*"}},
		{PrecedenceSpecific, "example.com", "", Allow, "*", nil},
		{PrecedenceSpecific, "", "9.9.9.9", Allow, "9.9.9.9", []string{"9.9.9.0/24"}},
		{PrecedenceSpecific, "", "64:ff9b::909:909", Allow, "9.9.9.9", []string{"9.9.9.0/24"}},
		{PrecedenceSpecific, "", "9.9.9.8", Deny, "9.9.9.0/24", []string{"9.0.0.0/8"}},
		{PrecedenceSpecific, "ok.evil.test", "9.9.9.9", Allow, "9.9.9.9", []string{"*.evil.test", "9.9.9.0/24"}},
		{"", "ok.evil.test", "", Deny, "*.evil.test", []string{"ok.evil.test:443"}},
		{"", "", "9.9.9.9", Deny, "9.9.9.0/24", []string{"9.9.9.9"}},
	} {
		lists.Precedence = c.precedence
		r := Request{Stage: StageConn, Port: 443, Protocol: TCP}
		if c.host != "" {
			r.Name = mustName(t, c.host)
		}
		if c.addr != "" {
			r.Addr = netip.MustParseAddr(c.addr)
		}
		compiled, err := Compile(lists, Options{Version: 1, Protected: name.NewProtected(nil, nil)})
		if err != nil {
			t.Fatal(err)
		}
		if e := compiled.Explain(r, true); e.Verdict != c.verdict || e.Rule != c.rule || !slices.Equal(e.Beaten, c.beaten) {
			t.Errorf("%q, %s %s: %s by %q over %q", c.precedence, c.host, c.addr, e.Verdict, e.Rule, e.Beaten)
		}
	}
}

// TestAttackTunnelThroughDeniedException: an exception that is denied on each of its ports, by an equal entry or by a lease, is not resolved
// in a denied zone. Otherwise queries would reach the servers of the zone.
func TestAttackTunnelThroughDeniedException(t *testing.T) {
	t.Parallel()
	spec := Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific, AllowedDomains: []string{"*", "*.x.evil.test:443", "*.y.evil.test:443"}, DeniedDomains: []string{"*.evil.test", "*.x.evil.test:443"}}
	for entry, open := range map[string]bool{"": true, "*.y.evil.test:80": true, "*.y.evil.test:443": false, "*.y.evil.test": false, "*.evil.test:443": false, "*:443": false} {
		s := spec
		if entry != "" {
			s = s.Overruled(entry)
		}
		compiled, err := Compile(s, Options{Version: 1, Protected: &name.Protected{}})
		if err != nil {
			t.Fatal(err)
		}
		for host, want := range map[string]bool{"a.x.evil.test": false, "a.y.evil.test": open, "a.z.evil.test": false, "a.test": true} {
			if d := compiled.Decide(Request{Stage: StageDNS, Name: mustName(t, host)}); d.Allowed() != want {
				t.Errorf("beside %q, %s: %s by %q", entry, host, d.Verdict, d.Rule)
			}
		}
	}
}

// TestExceptionsAreBounded: a policy whose denied ranges fall into too many pieces is refused, one with many exceptions is not.
func TestExceptionsAreBounded(t *testing.T) {
	t.Parallel()
	addresses := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("2600::%x:%x:%x:0", i*7919%65536, i, i))
		}
		return list
	}
	for n, want := range map[int]string{500: "", MaxEntries: "/denied_cidrs: is split into more than 65536 ranges"} {
		spec := Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific, AllowedCIDRs: addresses(n), DeniedCIDRs: []string{"2600::/16", "2600::/24", "::/0"}}
		_, err := Compile(spec, Options{Version: 1, Protected: &name.Protected{}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d exceptions: %v", n, err)
		}
	}
}

// TestPrecedenceIsChecked: unknown ones, and ones without lists, are refused. One without an exception, and a policy of nothing but
// exceptions, get a warning.
func TestPrecedenceIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec           Spec
		error, warning string
	}{
		{Spec{Mode: ModeCustom, Precedence: "longest", AllowedDomains: []string{"a.test"}}, "no precedence", ""},
		{Spec{Mode: ModeAllowAll, Precedence: PrecedenceSpecific}, "means nothing", ""},
		{Spec{Mode: ModeDenyAll, Precedence: PrecedenceSpecific}, "means nothing", ""},
		{Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific, DeniedDomains: []string{"a.test"}}, "", "has no effect"},
		{Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific, AllowedDomains: []string{"*.test"}, DeniedDomains: []string{"a.test"}}, "", "has no effect"},
		{Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific, AllowedDomains: []string{"a.test"}, DeniedDomains: []string{"*.test"}}, "", `add "*"`},
		{Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific, AllowedCIDRs: []string{"9.9.9.9"}, DeniedCIDRs: []string{"9.0.0.0/8"}}, "", `add "*"`},
		{Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific, AllowedDomains: []string{"*", "a.test"}, DeniedDomains: []string{"*.test"}}, "", ""},
		{Spec{Mode: ModeCustom, AllowedDomains: []string{"b.test"}, DeniedDomains: []string{"a.test"}}, "", ""},
	} {
		compiled, err := Compile(c.spec, Options{Version: 1, Protected: &name.Protected{}})
		if invalid, ok := errors.AsType[*document.InvalidError](err); c.error != "" {
			if !ok || invalid.Problems[0].Pointer != "/precedence" || !strings.Contains(err.Error(), c.error) {
				t.Errorf("%+v: %v", c.spec, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range compiled.Warnings() {
			got += p.Pointer + ": " + p.Message
		}
		if c.warning == "" && got != "" || !strings.Contains(got, c.warning) || c.warning != "" && !strings.HasPrefix(got, "/precedence: ") {
			t.Errorf("%+v: %s", c.spec, got)
		}
	}
}

// TestExceptionsOfHeaderRules: a header rule for an exception of a denied zone, or for a wildcard with one, applies; one for the rest of
// the zone never does, and its author is told.
func TestExceptionsOfHeaderRules(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{"ok.evil.test": true, "*.evil.test": true, "x.evil.test": false, "*.x.evil.test": false, "other.test": true} {
		rules, err := ParseHeaders(map[string]map[string]string{host: {"X-Key": "long-enough-value"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, cidrs := range [][]string{nil, {"9.9.9.9"}} {
			spec := Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific, AllowedDomains: []string{"*", "ok.evil.test"}, DeniedDomains: []string{"*.evil.test"}, AllowedCIDRs: cidrs}
			compiled, err := Compile(spec, Options{Version: 1, Headers: rules, Protected: &name.Protected{}})
			if err != nil {
				t.Fatal(err)
			}
			if warned := len(compiled.Warnings()) > 0; warned == want {
				t.Errorf("%s: warnings %v", host, compiled.Warnings())
			}
		}
	}
}
