package attack

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// TestSelfTestRaisesNoAlarm: under every kind of policy no denial caused by a self-test is attributed to the box.
func TestSelfTestRaisesNoAlarm(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	const allowed = policy.Allow
	for name, policy := range map[string]map[string]any{
		"deny-all":  {"mode": "deny-all"},
		"allow-all": {"mode": "allow-all"},
		"domains":   {"mode": "custom", "allowed_domains": []string{"api.example.com", "*.example.org"}, "denied_domains": []string{"evil.example.org"}},
		"cidrs":     {"mode": "custom", "allowed_cidrs": []string{"198.51.100.0/24", "2001:db8:1::/48"}},
	} {
		box := w.Create(map[string]any{"network_policy": policy})
		stream := follow(w, api.BoxPath(box, "egress")+"?follow=true&denied=true")
		w.IsTight(box)
		w.Until("the denials are told", func() bool { return stream.denials(true) > 50 })
		stream.has(func(e audit.Event) bool {
			// Packets that the kernel only counted, as happens when the gateway reads late, cannot be attributed.
			unlogged := strings.Contains(e.Error, "without logging them one by one")
			if e.Verdict != allowed && !e.SelfTest && !unlogged {
				t.Errorf("%s: counts as the box's: %s", name, audit.Line(e))
			}
			return false
		})
	}
	if marked := w.Metric("boxgate_selftest_decisions_total"); marked < 200 {
		t.Errorf("%v denials of self-tests are counted", marked)
	}
}

// denials counts the denials caused by a self-test, or by the box.
func (f *follower) denials(selfTest bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if e.Verdict != policy.Allow && e.SelfTest == selfTest {
			n += int(max(e.Count, 1))
		}
	}
	return n
}

// TestAttackUnderCoverOfASelfTest: a box attacks during a self-test, the targets of the test and others. Each of its
// attempts is attributed to the box.
func TestAttackUnderCoverOfASelfTest(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	r := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	stream := follow(w, api.BoxPath(r.Box, "egress")+"?follow=true&denied=true")
	tested := []netip.AddrPort{
		netip.MustParseAddrPort("169.254.169.254:80"),
		netip.AddrPortFrom(harness.AttackerAt(94)[0], 4242), netip.AddrPortFrom(harness.AttackerAt(94)[1], 4242),
	}
	over, done := make(chan struct{}), make(chan struct{})
	var tries atomic.Int64
	go func() {
		defer close(done)
		for i := 0; ; i = (i + 1) % len(tested) {
			select {
			case <-over:
				return
			default:
			}
			if _, err := r.Dial("tcp", tested[i]); err == nil {
				t.Errorf("%v was reached", tested[i])
			}
			tries.Add(1)
		}
	}()
	_, _ = w.GatewayCommand("box", "selftest", r.Box)
	close(over)
	<-done
	total := int(tries.Load())
	w.Until("all are told", func() bool { return stream.denials(false) >= total })
	for _, at := range tested[1:] { // the self-test may choose such an address too, but not the port
		if stream.has(func(e audit.Event) bool { return e.SelfTest && e.Addr == at.Addr() && e.Port == at.Port() }) {
			t.Errorf("%v, which only the box has tried, counts as the self-test's", at)
		}
		if !stream.has(func(e audit.Event) bool { return !e.SelfTest && e.Addr == at.Addr() && e.Port == at.Port() }) {
			t.Errorf("%v is not told, of %d tries", at, total)
		}
	}
	if marked := stream.denials(true); marked > 400 {
		t.Errorf("%d denials are marked", marked)
	}
}
