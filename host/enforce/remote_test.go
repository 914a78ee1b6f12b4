package enforce

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"boxgate/firewall"
	"boxgate/policy"
)

// A box without an interface is connected, changed and disconnected without a call to the kernel, beside others that have one. While
// it is suspended, the proxy does not find it.
func TestRemoteBoxHasNoKernelRules(t *testing.T) {
	t.Parallel()
	e, linked, f := connected(t, narrow)
	b := &policy.Box{ID: "remote", V4: netip.MustParseAddr("10.200.0.4"), V6: netip.MustParseAddr("fd42::4")}
	f.box, f.steps = b, nil
	ctx := t.Context()
	other := &policy.Box{ID: "b3", V4: netip.MustParseAddr("10.200.0.5")}
	f.failAt["add"] = 1 // of the box with an interface
	errs := e.ConnectAll(ctx, []Joining{{b, Interface{Remote: true}, compiled(t, narrow)}, {other, Interface{NetNS: "/x"}, compiled(t, narrow)}})
	if errs[0] != nil || !errors.Is(errs[1], errFake) {
		t.Errorf("errors %v", errs)
	}
	f.steps = nil
	if e.Boxes.BoxByAddr(b.V4) != b || b.Policy.Load() == nil {
		t.Error("the box is not connected")
	}
	err := errors.Join(e.Await(ctx, b), e.Enforce(ctx, b, compiled(t, wide)), e.Enforce(ctx, b, compiled(t, narrow)), e.CutFlows(ctx, b),
		e.cutFlows(ctx, b, func(firewall.Flow) bool { return false }), e.Limit(ctx, b, policy.Limits{}, policy.Limits{}))
	if want := []string{"recheck under wide", "recheck under narrow"}; err != nil || !slices.Equal(f.steps, want) {
		t.Errorf("%v, steps %q, want %q", err, f.steps, want)
	}
	f.steps = nil
	if err := e.Suspend(ctx, b.ID); err != nil || e.Boxes.BoxByAddr(b.V4) != nil || e.Boxes.BoxByAddr(b.V6) != nil {
		t.Errorf("suspended: %v, found %v", err, e.Boxes.BoxByAddr(b.V4))
	}
	if err := e.Resume(ctx, b.ID); err != nil || e.Boxes.BoxByAddr(b.V4) != b {
		t.Errorf("resumed: %v", err)
	}
	if want := []string{"close connections under narrow"}; !slices.Equal(f.steps, want) {
		t.Errorf("steps %q, want %q", f.steps, want)
	}
	f.steps = nil
	if err := e.Disconnect(ctx, b); err != nil || e.Boxes.BoxByAddr(b.V4) != nil {
		t.Errorf("disconnected: %v", err)
	}
	if want := []string{"close connections under none", "forget under none"}; !slices.Equal(f.steps, want) {
		t.Errorf("steps %q, want %q", f.steps, want)
	}
	if e.Boxes.BoxByAddr(linked.V4) != linked {
		t.Error("another box was disconnected")
	}
	f.steps = nil
	if err := errors.Join(e.Suspend(ctx, b.ID), e.Disconnect(ctx, linked)); err != nil || !slices.Contains(f.steps, "suspend under none") {
		t.Errorf("%v, steps %q: a box with an interface is the kernel's", err, f.steps)
	}
}
