package firewall

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"boxgate/firewall/network"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// versions lists the chains and sets of plans and protected ranges in the table.
func (w *world) versions() []string {
	w.t.Helper()
	var out []string
	w.must(w.in(w.gateway, func() error {
		listing, err := exec.Command("nft", "list", "table", "inet", network.TableName).CombinedOutput()
		for line := range strings.Lines(string(listing)) {
			f := strings.Fields(line)
			if len(f) > 1 && (strings.HasPrefix(f[1], "plan_") || strings.HasPrefix(f[1], "protected_")) {
				out = append(out, f[1])
			}
		}
		return err
	}))
	slices.Sort(out)
	return out
}

// dying marks a context in which the gateway dies at a step.
type dying struct{}

// failing marks a context in which a step fails, or each step on a list.
type failing struct{}

func TestMain(m *testing.M) {
	fault.Inject(func(ctx context.Context, step string) error {
		if ctx.Value(dying{}) == step {
			panic(dying{})
		}
		if list, _ := ctx.Value(failing{}).([]string); ctx.Value(failing{}) == step || slices.Contains(list, step) {
			return errors.New("failed for the test")
		}
		return nil
	}, nil)
	os.Exit(m.Run())
}

// dieAt makes the gateway die at the step.
func (w *world) dieAt(step string, do func(context.Context)) {
	w.t.Helper()
	defer func() {
		if recover() != (dying{}) {
			w.t.Fatalf("the step %q was not reached", step)
		}
	}()
	do(context.WithValue(w.t.Context(), dying{}, step))
}

// A gateway that dies between writing a plan and deleting the previous one leaves both. The next start finds the active
// one, keeps it, and deletes the other, however often it happens.
func TestWhatADeadGatewayLeftIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("one", allow("198.51.100.0/28"))
	w.apply("two", allow("198.51.100.0/28"))
	want := w.versions()
	server := w.serveTCP(w.outside, ":0", nil)
	for range 3 {
		other := allow("198.51.100.32/28")
		other.Protected = append(other.Protected, prefixes("192.0.2.0/24")...)
		w.addBox("one", 10)
		w.dieAt("plan: built", func(ctx context.Context) { _ = w.fw.Apply(ctx, "one", other) })
		if got := w.versions(); len(got) <= len(want) {
			t.Fatalf("there is no second version: %v", got)
		}
		w.must(w.fw.Close())
		w.open()
		if got := w.versions(); !slices.Equal(got, want) {
			t.Errorf("the table holds %v, want %v", got, want)
		}
		if _, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "x"); err != nil {
			t.Errorf("the plan in force: %v", err)
		}
	}
	for _, id := range []policy.BoxID{"one", "two"} {
		w.must(w.fw.RemoveBox(t.Context(), id))
	}
	w.must(w.fw.Prune(t.Context()))
	if got := w.versions(); len(got) > 0 {
		t.Errorf("%v is left without boxes", got)
	}
}

// Replaced versions are deleted, also while boxes change one by one to other protected ranges.
func TestReplacedPlansAndRangesAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	for i := range 5 {
		p := allow("198.51.100.0/28", "2001:db8:2::/64")
		p.Protected = append(p.Protected, manyPrefixes(i+1, 1)...)
		w.apply("one", p)
		w.apply("two", p)
		// Two chains and two sets for the plan that the boxes share, and two for its ranges.
		if got := w.versions(); len(got) != 4+2 {
			t.Fatalf("after change %d: %v", i, got)
		}
	}
}

// Boxes with the same plan share its rules. These stay until the last of the boxes has another plan, also across a restart,
// and a change of one box does not affect the others.
func TestBoxesWithOnePlanShareItsRules(t *testing.T) {
	w := newWorld(t)
	server := w.serveTCP(w.outside, ":0", nil)
	to := netip.AddrPortFrom(outside4, server.Port())
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.addBox("three", 12)
	expect := func(what string, shared int, reach ...policy.BoxID) {
		t.Helper()
		if got := w.versions(); len(got) != shared {
			t.Errorf("%s: the table holds %v", what, got)
		}
		for _, id := range []policy.BoxID{"one", "two", "three"} {
			if slices.Contains(reach, id) {
				w.wait(what+": the way of "+string(id), func() bool { return w.reaches(id, to) })
			} else if w.reaches(id, to) {
				t.Errorf("%s: %s reaches a forbidden address", what, id)
			}
		}
	}
	for i, id := range []policy.BoxID{"one", "two"} {
		p := allow("198.51.100.0/28")
		p.Version = uint64(i)
		w.apply(id, p)
	}
	w.apply("three", allow("198.51.100.32/28"))
	const plan, ranges = 3, 2 // two chains and a set; both families
	expect("two have one plan", 2*plan+ranges, "one", "two")
	w.apply("one", allow("198.51.100.32/28"))
	expect("one has left", 2*plan+ranges, "two")
	w.apply("two", allow("198.51.100.32/28"))
	expect("both have left", plan+ranges)
	w.apply("one", allow("198.51.100.0/28"))
	w.must(w.fw.RemoveBox(t.Context(), "three"))
	w.addBox("three", 12)
	expect("one is back, and three without a plan", 2*plan+ranges, "one")
	w.apply("three", allow("198.51.100.0/28"))
	w.must(w.fw.Close())
	w.open()
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("one", allow("198.51.100.32/28"))
	expect("one has left after a start", 3*plan+2*ranges, "three") // a start writes its own ranges
	w.addBox("three", 12)
	w.apply("two", allow("198.51.100.32/28"))
	w.apply("three", allow("198.51.100.32/28"))
	expect("all have left after a start", plan+ranges)
}

// Another program's rule refers to a garbage chain: that chain stays, the rest is deleted, and no change is delayed.
func TestWhatCannotBeDeletedBlocksNothing(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	w.shell(w.gateway, "nft add chain inet boxgate mine; nft add rule inet boxgate mine jump "+w.fw.boxes.byID["one"].Chain()+"_allowed")
	server := w.serveTCP(w.outside, ":0", nil)
	for range 3 {
		w.apply("one", allow("198.51.100.0/29"))
		if _, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "x"); err != nil {
			t.Error(err)
		}
	}
	if n := w.fw.table.GarbageCount(); n != 1 {
		t.Errorf("%d versions are left", n)
	}
	w.shell(w.gateway, "nft delete chain inet boxgate mine")
	w.apply("one", allow("198.51.100.0/28"))
	if n := w.fw.table.GarbageCount(); n != 0 {
		t.Errorf("%d versions are left", n)
	}
}

// A removal that fails half-way, however often, leaves the box closed and does not affect a box with the same plan. A new
// box of that name starts closed.
func TestARemovalThatFailsTakesAndLeavesNothing(t *testing.T) {
	const step = "remove: link deleted"
	for name, fail := range map[string]func(*world){
		"error": func(w *world) {
			if err := w.fw.RemoveBox(context.WithValue(w.t.Context(), failing{}, step), "one"); err == nil {
				t.Error("the step was not reached")
			}
		},
		"panic": func(w *world) {
			w.dieAt(step, func(ctx context.Context) { _ = w.fw.RemoveBox(ctx, "one") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			to := netip.AddrPortFrom(outside4, w.serveTCP(w.outside, ":0", nil).Port())
			for i, id := range []policy.BoxID{"one", "two"} {
				w.addBox(id, byte(10+i))
				w.apply(id, allow("198.51.100.0/28"))
			}
			want := w.versions()
			for range 3 {
				fail(w)
			}
			w.wait("two keeps its network", func() bool { return w.reaches("two", to) })
			w.addBox("one", 10)
			w.flushWire("two")
			if w.reaches("one", to) {
				t.Error("one has the plan of before its removal")
			}
			w.apply("one", allow("198.51.100.0/28"))
			w.wait("one has a plan", func() bool { return w.reaches("one", to) })
			if got := w.versions(); !slices.Equal(got, want) || w.fw.table.GarbageCount() != 0 {
				t.Errorf("the table holds %v, of which %d are to be deleted, want %v", got, w.fw.table.GarbageCount(), want)
			}
			for _, id := range []policy.BoxID{"one", "two"} {
				w.must(w.fw.RemoveBox(t.Context(), id))
			}
			if got := w.versions(); len(got) > 0 {
				t.Errorf("%v is left without boxes", got)
			}
		})
	}
}

// The same for a box of an earlier run that was not added again.
func TestAPruningThatFailsLeavesNothing(t *testing.T) {
	w := newWorld(t)
	to := netip.AddrPortFrom(outside4, w.serveTCP(w.outside, ":0", nil).Port())
	for i, id := range []policy.BoxID{"one", "two"} {
		w.addBox(id, byte(10+i))
		w.apply(id, allow("198.51.100.0/28"))
	}
	w.must(w.fw.Close())
	w.open()
	w.addBox("two", 11)
	for range 3 {
		if err := w.fw.Prune(context.WithValue(t.Context(), failing{}, "remove: link deleted")); err == nil {
			t.Error("the step was not reached")
		}
	}
	w.wait("two keeps its network", func() bool { return w.reaches("two", to) })
	w.addBox("one", 10)
	if w.reaches("one", to) {
		t.Error("one has the plan of before its removal")
	}
	w.must(errors.Join(w.fw.RemoveBox(t.Context(), "one"), w.fw.RemoveBox(t.Context(), "two")))
	if got := w.versions(); len(got) > 0 || w.fw.table.GarbageCount() != 0 {
		t.Errorf("%v is left without boxes, %d to be deleted", got, w.fw.table.GarbageCount())
	}
}
