package enforce

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"boxgate/firewall"
	"boxgate/policy"
	"boxgate/policy/name"
)

// narrow and wide are the CIDRs of two policies; wide allows more.
var (
	narrow = []string{"192.0.2.1/32"}
	wide   = []string{"192.0.2.1/32", "192.0.2.2/32"}
)

// width returns which of the two a plan belongs to.
func width(plan policy.KernelPlan) string {
	if slices.Contains(plan.Allowed, netip.MustParsePrefix(wide[1])) {
		return "wide"
	}
	return "narrow"
}

// fakes records calls, with the policy that DNS and proxy read at that moment.
type fakes struct {
	box    *policy.Box
	steps  []string
	failAt map[string]int // number of remaining failures of a step
}

var errFake = errors.New("fake failure")

func (f *fakes) step(name string) error {
	under := "none"
	if c := f.box.Policy.Load(); c != nil {
		under = width(c.Kernel())
	}
	f.steps = append(f.steps, name+" under "+under)
	if f.failAt[name] > 0 {
		f.failAt[name]--
		return errFake
	}
	return nil
}

func (f *fakes) AwaitBox(context.Context, policy.BoxID) error                 { return f.step("await") }
func (f *fakes) SetRates(context.Context, policy.BoxID, firewall.Rates) error { return f.step("rates") }
func (f *fakes) Suspend(context.Context, policy.BoxID) error                  { return f.step("suspend") }
func (f *fakes) Resume(context.Context, policy.BoxID) error                   { return f.step("resume") }
func (f *fakes) RemoveBox(context.Context, policy.BoxID) error                { return f.step("remove") }

func (f *fakes) AddBoxes(_ context.Context, list []firewall.Attachment) (errs []error) {
	for range list {
		errs = append(errs, f.step("add"))
	}
	return errs
}

func (f *fakes) ApplyAll(ctx context.Context, plans []firewall.Plan) (errs []error) {
	for _, p := range plans {
		errs = append(errs, f.Apply(ctx, p.Box, p.KernelPlan))
	}
	return errs
}

func (f *fakes) CutAllFlows(context.Context, func(policy.BoxID, firewall.Flow) bool) error {
	return f.step("cut all")
}

func (f *fakes) Apply(_ context.Context, _ policy.BoxID, plan policy.KernelPlan) error {
	return f.step(width(plan) + " kernel")
}

func (f *fakes) CutFlows(context.Context, policy.BoxID, func(firewall.Flow) bool) error {
	return f.step("cut")
}

func (f *fakes) Recheck(policy.BoxID)  { _ = f.step("recheck") }
func (f *fakes) CloseBox(policy.BoxID) { _ = f.step("close connections") }

func compiled(t *testing.T, cidrs []string) *policy.Compiled {
	t.Helper()
	c, err := policy.Compile(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: cidrs}, policy.Options{Version: 1, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// connected returns a connected box under a policy with the given CIDRs.
func connected(t *testing.T, cidrs []string) (*Enforcer, *policy.Box, *fakes) {
	t.Helper()
	b := &policy.Box{ID: "b1", V4: netip.MustParseAddr("10.200.0.3"), V6: netip.MustParseAddr("fd42::3")}
	f := &fakes{box: b, failAt: map[string]int{}}
	e := &Enforcer{Kernel: f, Proxy: f, Boxes: &Registry{}, Forget: []func(policy.BoxID){func(policy.BoxID) { _ = f.step("forget") }}}
	if err := e.Connect(t.Context(), b, Interface{NetNS: "/ns"}, compiled(t, cidrs)); err != nil {
		t.Fatal(err)
	}
	return e, b, f
}

func expectSteps(t *testing.T, f *fakes, want ...string) {
	t.Helper()
	if !slices.Equal(f.steps, want) {
		t.Errorf("steps\n%q, want\n%q", f.steps, want)
	}
	f.steps = nil
}

// At no moment is anything open that neither the old nor the new policy allows: the kernel tightens before DNS and proxy
// do, and loosens after them.
func TestKernelClosesFirstAndOpensLast(t *testing.T) {
	t.Parallel()
	e, b, f := connected(t, narrow)
	expectSteps(t, f, "add under none", "narrow kernel under narrow")
	if err := e.Enforce(t.Context(), b, compiled(t, wide)); err != nil {
		t.Fatal(err)
	}
	expectSteps(t, f, "wide kernel under wide", "recheck under wide", "cut under wide")
	if err := e.Enforce(t.Context(), b, compiled(t, narrow)); err != nil {
		t.Fatal(err)
	}
	expectSteps(t, f, "narrow kernel under wide", "recheck under narrow", "cut under narrow")
}

// Whichever step fails, the old policy is applied again everywhere.
func TestFailedEnforcementLeavesTheOldPolicy(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"wide kernel", "cut"} {
		e, b, f := connected(t, narrow)
		f.failAt[step], f.steps = 1, nil
		if err := e.Enforce(t.Context(), b, compiled(t, wide)); !errors.Is(err, errFake) || errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", step, err)
		}
		if tail := f.steps[len(f.steps)-3:]; !slices.Equal(tail, []string{"narrow kernel under narrow", "recheck under narrow", "cut under narrow"}) {
			t.Errorf("%s: %q", step, f.steps)
		}
		if e.Boxes.BoxByAddr(b.V4) != b || e.Boxes.BoxByAddr(b.V6) != b {
			t.Errorf("%s: the box is not in the registry", step)
		}
	}
}

// A box that rejects both the new policy and the old one is closed: it has no policy and no interface, and is not in the
// registry.
func TestBoxWithoutAWayBackIsClosed(t *testing.T) {
	t.Parallel()
	e, b, f := connected(t, narrow)
	f.failAt["wide kernel"], f.failAt["narrow kernel"], f.steps = 1, 1, nil
	if err := e.Enforce(t.Context(), b, compiled(t, wide)); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	expectSteps(t, f, "wide kernel under wide", "narrow kernel under narrow", "recheck under narrow", "remove under none",
		"close connections under none", "forget under none")
	if b.Policy.Load() != nil || e.Boxes.BoxByAddr(b.V4) != nil || e.Boxes.BoxByAddr(b.V6) != nil {
		t.Error("the box is open")
	}
	if err := errors.Join(e.Enforce(t.Context(), b, compiled(t, wide)), e.Restore(b, compiled(t, wide))); err != nil || len(f.steps) > 0 || b.Policy.Load() != nil {
		t.Errorf("a disconnected box was given a policy: %v %q", err, f.steps)
	}
}

// A change that only loosens does not check connections, unless some were never checked against an applied policy: those
// from before the gateway's start, or from a failed change.
func TestConnectionsAreJudgedWhereAnyMayBeDenied(t *testing.T) {
	t.Parallel()
	e, b, f := connected(t, narrow)
	enforce := func(cidrs []string, cuts bool) {
		t.Helper()
		f.steps = nil
		err := e.Enforce(t.Context(), b, compiled(t, cidrs))
		if cut := slices.Contains(f.steps, "cut under "+width(compiled(t, cidrs).Kernel())); err != nil || cut != cuts {
			t.Errorf("%q: %v, want a cut: %v", f.steps, err, cuts)
		}
	}
	enforce(wide, true)   // the first change
	enforce(narrow, true) // tighter
	enforce(wide, false)
	f.failAt["cut"] = 2
	if err := e.Enforce(t.Context(), b, compiled(t, narrow)); !errors.Is(err, errFake) {
		t.Errorf("%v", err)
	}
	enforce(wide, true)
	enforce(wide, false)
	if err := errors.Join(e.Disconnect(t.Context(), b), e.Connect(t.Context(), b, Interface{}, compiled(t, narrow))); err != nil {
		t.Fatal(err)
	}
	enforce(wide, true)
}

// A box whose interface could not be made is not registered. A box that could not be opened is disconnected by its
// caller.
func TestFailedConnection(t *testing.T) {
	t.Parallel()
	b := &policy.Box{ID: "b1", V4: netip.MustParseAddr("10.200.0.3")}
	f := &fakes{box: b, failAt: map[string]int{"add": 1, "narrow kernel": 1}}
	e := &Enforcer{Kernel: f, Proxy: f, Boxes: &Registry{}}
	if err := e.Connect(t.Context(), b, Interface{}, compiled(t, narrow)); !errors.Is(err, errFake) || b.Policy.Load() != nil || e.Boxes.BoxByAddr(b.V4) != nil {
		t.Errorf("without an interface: %v", err)
	}
	if err := e.Connect(t.Context(), b, Interface{}, compiled(t, narrow)); !errors.Is(err, errFake) {
		t.Errorf("without kernel rules: %v", err)
	}
	if err := e.Disconnect(t.Context(), b); err != nil || b.Policy.Load() != nil || e.Boxes.BoxByAddr(b.V4) != nil {
		t.Errorf("disconnected: %v", err)
	}
}
