package learn

import (
	"testing"

	"boxgate/policy"
)

// TestSuspect: names that imitate a domain of the policy or of a preset are told with it, in any script; other names in punycode are
// told as such, and names that are allowed are not suspected.
func TestSuspect(t *testing.T) {
	now := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com", "*.paypal.com", "xn--bcher-kva.example:443"}}
	for host, want := range map[string]Suspicion{
		"api.example.com":          {},
		"www.example.org":          {},
		"paypa1.com":               {Why: WhyLookAlike, Like: "paypal.com"},
		"paypal.com.example.org":   {Why: WhyLookAlike, Like: "paypal.com"},
		"glthub.com":               {Why: WhyLookAlike, Like: "github.com"},
		"xn--pypal-4ve.com":        {Why: WhyLookAlike, Like: "paypal.com", Unicode: "pаypal.com"},
		"xn--80ak6aa92e.com":       {Why: WhyPunycode, Unicode: "аррӏе.com"},
		"www.xn--githb-nva.com":    {Why: WhyLookAlike, Like: "github.com", Unicode: "www.githüb.com"},
		"xn--mnchen-3ya.example":   {Why: WhyPunycode, Unicode: "münchen.example"},
		"xn--bcher-kva.example":    {Unicode: "bücher.example"},
		"no name":                  {},
		"sub.paypal.com":           {},
		"eu.api.example.com":       {},
		"registry.npmjs.org.co.uk": {Why: WhyLookAlike, Like: "npmjs.org"},
	} {
		got := Suspect(now, host, 443)
		if got.Why != want.Why || got.Like != want.Like || (got.Unicode == "") != (want.Unicode == "") {
			t.Errorf("%s: %+v, want %+v", host, got, want)
		}
	}
	if got := Suspect(now, "xn--pypal-4ve.com", 443); len(got.Scripts) != 2 || got.Scripts[0] != "Latin" || got.Scripts[1] != "Cyrillic" {
		t.Errorf("scripts %q", got.Scripts)
	}
	if got := Suspect(policy.Spec{Mode: policy.ModeDenyAll}, "xn--80ak6aa92e.com", 443); got.Why != WhyPunycode || len(got.Scripts) != 1 {
		t.Errorf("%+v", got)
	}
}
