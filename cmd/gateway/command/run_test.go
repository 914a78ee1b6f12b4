package command

import (
	"slices"
	"strings"
	"testing"

	"boxgate/policy"
)

// TestRunAllows: --allow adds destinations to the policy, whatever its mode.
func TestRunAllows(t *testing.T) {
	t.Parallel()
	args := []string{"a.example", "b.example:22", "192.0.2.1"}
	for _, spec := range []policy.Spec{{Mode: policy.ModeDenyAll}, {Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}}} {
		got, err := withAllowed(spec, args)
		if err != nil || got.Mode != policy.ModeCustom || !slices.Equal(got.AllowedDomains, args[:2]) || !slices.Equal(got.AllowedCIDRs, args[2:]) {
			t.Errorf("%+v %v", got, err)
		}
	}
	if got, err := withAllowed(policy.Spec{Mode: policy.ModeAllowAll}, args); err != nil || got.Mode != policy.ModeAllowAll {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := withAllowed(policy.Spec{Mode: policy.ModeDenyAll}, []string{"https://a.example/"}); err == nil || !strings.Contains(err.Error(), "--allow: ") {
		t.Error(err)
	}
}
