package dns

import (
	"slices"
	"testing"

	"boxgate/policy"
)

// TestLookupText checks that only texts of the requested name are returned, through CNAMEs.
func TestLookupText(t *testing.T) {
	t.Parallel()
	z := newZone(t, `a.example.com. 60 IN TXT "one" "two"`, `a.example.com. 60 IN TXT "three"`, "b.example.com. 60 IN CNAME a.example.com.",
		"loop.example.com. 60 IN CNAME loop2.example.com.", "loop2.example.com. 60 IN CNAME loop.example.com.", "c.example.com. 60 IN A "+goodV4)
	b := newBench(t, policy.Spec{Mode: policy.ModeDenyAll}, z)
	for host, want := range map[string][]string{
		"a.example.com": {"onetwo", "three"}, "b.example.com": {"onetwo", "three"}, "c.example.com": nil, "none.example.com": nil,
	} {
		if got, err := b.LookupText(t.Context(), mustName(t, host)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q %v", host, got, err)
		}
	}
	if got, err := b.LookupText(t.Context(), mustName(t, "loop.example.com")); err == nil {
		t.Errorf("a loop: %q", got)
	}
	z.fail(errDown)
	if got, err := b.LookupText(t.Context(), mustName(t, "a.example.com")); err == nil {
		t.Errorf("no upstream answers, and yet %q", got)
	}
}
