package lint

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/name"
)

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func seen(stage policy.Stage, rule string, port uint16, protocol policy.Protocol, days int) observe.Observation {
	return observe.Of(&audit.Event{
		Time: now.AddDate(0, 0, -days), Box: "b1", Stage: stage, Protocol: protocol, Name: "x.example.com", Port: port, Verdict: policy.Allow,
		Reason: name.ReasonAllowedDomain, Rule: rule,
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	custom := func(domains []string, cidrs ...string) policy.Spec {
		return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains, AllowedCIDRs: cidrs}
	}
	old := seen(policy.StageConn, "old.example.com", 443, policy.TCP, 40)
	use443 := seen(policy.StageConn, "a.example.com", 443, policy.TCP, 6)
	for title, c := range map[string]struct {
		spec  policy.Spec
		seen  observe.Summary
		kinds string
		text  string
	}{
		"suffixes":      {custom([]string{"*", "*.com", "*.github.io", "*.example.com:443"}), observe.Summary{}, "suffix /allowed_domains/0, suffix /allowed_domains/1, suffix /allowed_domains/2", "github.io is a public suffix"},
		"ranges":        {custom(nil, "0.0.0.0/0", "8.8.8.0/24", "2600::/16"), observe.Summary{}, "range /allowed_cidrs/0, range /allowed_cidrs/2", "many owners"},
		"open":          {policy.Spec{Mode: policy.ModeAllowAll}, observe.Summary{}, "open /mode", ""},
		"a used port":   {custom([]string{"a.example.com"}), observe.Summary{Observations: []observe.Observation{use443}}, "port /allowed_domains/0", "a.example.com:443 would do"},
		"not known":     {custom([]string{"a.example.com"}), observe.Summary{}, "", ""},
		"not used":      {custom([]string{"a.example.com:443", "b.example.com"}), observe.Summary{Observations: []observe.Observation{use443}}, "unused /allowed_domains/0, unused /allowed_domains/1", "not used in the last 6 days, which is all that is known"},
		"in doubt":      {custom([]string{"b.example.com"}), observe.Summary{Observations: []observe.Observation{use443}, Overflow: 3}, "unused /allowed_domains/0", "3 decisions are in no observation"},
		"long ago":      {custom([]string{"old.example.com"}), observe.Summary{Observations: []observe.Observation{old}}, "unused /allowed_domains/0", "not used in the last 30 days"},
		"removed":       {custom([]string{"b.example.com"}), observe.Summary{Observations: []observe.Observation{old}, Since: now.Add(-time.Hour)}, "", ""},
		"looked up":     {custom([]string{"a.example.com"}), observe.Summary{Observations: []observe.Observation{seen(policy.StageDNS, "a.example.com", 0, policy.UDP, 3)}}, "unused /allowed_domains/0", "looked up, but not connected to, in the last 3 days"},
		"whole":         {custom(nil, "8.8.8.8"), observe.Summary{Observations: []observe.Observation{seen(policy.StageKernel, "8.8.8.8", 53, policy.UDP, 3)}}, "whole /allowed_cidrs/0", "only 53/udp is used"},
		"nothing to do": {custom([]string{"a.example.com:443"}), observe.Summary{Observations: []observe.Observation{seen(policy.StageHTTP, "a.example.com:443", 443, policy.TCP, 3)}}, "", ""},
	} {
		var kinds, texts []string
		for _, f := range Check(c.spec, c.seen, now) {
			kinds, texts = append(kinds, fmt.Sprint(f.Kind, " ", f.Pointer)), append(texts, f.Text)
		}
		if got := strings.Join(kinds, ", "); got != c.kinds || !strings.Contains(strings.Join(texts, "\n"), c.text) {
			t.Errorf("%s: %s: %q, want %s: %s", title, got, texts, c.kinds, c.text)
		}
	}
}
