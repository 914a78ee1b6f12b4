package remedy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
)

// allowing are the reasons that no denial has.
var allowing = []policy.Reason{
	policy.ReasonAllowAll, policy.ReasonAllowedCIDR, policy.ReasonAllowedDomain, policy.ReasonNotDenied, policy.ReasonURL, policy.ReasonUnnamed,
}

// TestEveryDenialHasARemedy, and nothing else has.
func TestEveryDenialHasARemedy(t *testing.T) {
	t.Parallel()
	for _, r := range policy.Reasons() {
		text := For(audit.Event{Reason: r, Box: "b1", Name: "a.example"})
		if has := text != "" && text != elsewhere; has == slices.Contains(allowing, r) {
			t.Errorf("denied by %s: %q", r, text)
		}
		if text := For(audit.Event{Reason: r, Verdict: policy.Allow}); text != "" {
			t.Errorf("allowed by %s: %q", r, text)
		}
	}
}

// TestRemedyCanBePasted: it names the box and the destination, and nothing that a box chose freely.
func TestRemedyCanBePasted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		event audit.Event
		want  string
	}{
		{audit.Event{Box: "b1", Name: "a.example", Port: 443}, "gateway policy allow b1 a.example:443"},
		{audit.Event{Box: "b1", Name: "a.example", Addr: netip.MustParseAddr("192.0.2.1")}, "gateway policy allow b1 a.example"},
		{audit.Event{Box: "b1", Addr: netip.MustParseAddr("192.0.2.1"), Port: 22}, "gateway policy allow b1 192.0.2.1"},
		{audit.Event{Box: "b1", Name: "$(reboot).example", Port: 443}, "gateway policy get b1"},
		{audit.Event{Box: "b1"}, "gateway policy get b1"},
		{audit.Event{Box: "b1", BoxName: "web-1"}, "gateway policy get web-1"},
		{audit.Event{Box: "b1", BoxName: "$(reboot)"}, "gateway policy get b1"},
	} {
		c.event.Reason = policy.ReasonNotAllowed
		if got := For(c.event); !strings.HasSuffix(got, c.want) || strings.Contains(got, "$") {
			t.Errorf("%+v: %q, want %q", c.event, got, c.want)
		}
	}
}
