package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/firewall/network"
	"boxgate/internal/nightly"
	"boxgate/policy"
)

// removeAtOnce removes boxes for callers that all arrive during another change, so that they wait together.
func (w *world) removeAtOnce(ids []policy.BoxID) error {
	w.t.Helper()
	errs := make([]error, len(ids))
	var calls sync.WaitGroup
	w.fw.mu.Lock()
	for i, id := range ids {
		calls.Go(func() { errs[i] = w.fw.RemoveBox(w.t.Context(), id) })
	}
	w.wait("all to wait", func() bool {
		w.fw.removals.mu.Lock()
		defer w.fw.removals.mu.Unlock()
		return len(w.fw.removals.waiting) == len(ids)
	})
	w.fw.mu.Unlock()
	calls.Wait()
	return errors.Join(errs...)
}

// everything returns the kernel's state of boxes, without counts of connections, which change without us.
func (w *world) everything() string {
	w.t.Helper()
	var out []byte
	w.must(w.in(w.gateway, func() (err error) {
		out, err = exec.Command("sh", "-ec", "nft list table inet boxgate | grep -v 'ct count'; ip -o link; ip route; ip -6 route; conntrack -L 2>/dev/null || true").Output()
		return err
	}))
	return string(out)
}

// TestManyBoxesAreRemovedTogether: they take as many transactions as few boxes, and one deletion of interfaces. No state of
// them remains, and another box keeps its network.
func TestManyBoxesAreRemovedTogether(t *testing.T) {
	nightly.Root(t)
	var counts [2]int
	t.Run("worlds", func(t *testing.T) {
		for i, n := range []int{5, 50} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				w := newWorld(t)
				server := w.serveTCP(w.outside, ":0", nil)
				there := netip.AddrPortFrom(outside4, server.Port())
				list, plans := w.attachments(n + 1)
				w.must(errors.Join(append(w.fw.AddBoxes(t.Context(), list), w.fw.ApplyAll(t.Context(), plans)...)...))
				stays, ids := list[n].Box, []policy.BoxID{"unknown"}
				for _, a := range list[:n] {
					ids = append(ids, a.Box)
				}
				for _, a := range []policy.BoxID{stays, list[0].Box} {
					w.must(w.fw.AwaitBox(t.Context(), a))
					w.wait("the way of "+string(a), func() bool { return w.reaches(a, there) })
				}
				counts[i] = w.transactions(func() { w.must(w.removeAtOnce(append(ids, list[0].Box))) })
				if !w.reaches(stays, there) {
					t.Error("the box that stays has lost its network")
				}
				left := w.everything()
				for _, a := range list[:n] {
					if strings.Contains(left, network.LinkName(a.Box)) || strings.Contains(left, a.V4.String()+" ") {
						t.Errorf("of %s something is left:\n%s", a.Box, left)
						break
					}
				}
				if len(w.fw.removing) > 0 || len(w.fw.boxes.byID) != 1 {
					t.Errorf("%d boxes are known, %v are being removed", len(w.fw.boxes.byID), w.fw.removing)
				}
				w.must(errors.Join(append(w.fw.AddBoxes(t.Context(), list[:1]), w.fw.ApplyAll(t.Context(), plans[:1])...)...))
				w.wait("the way of a box that comes back", func() bool { return w.reaches(list[0].Box, there) })
			})
		}
	})
	if counts[0] != counts[1] || counts[0] == 0 {
		t.Errorf("transactions for 5 boxes and for 50: %v", counts)
	}
}

// TestBoxesThatCannotBeRemovedTogether: they are removed one by one, so that the fault of one does not affect the others.
// Another program's interface is not deleted with them.
func TestBoxesThatCannotBeRemovedTogether(t *testing.T) {
	nightly.Root(t)
	w, logs := newLoggedWorld(t)
	list, _ := w.attachments(3)
	w.must(errors.Join(w.fw.AddBoxes(t.Context(), list)...))
	link := network.LinkName(list[1].Box)
	w.shell(w.gateway, "ip link add other type veth peer name rehto; ip link set other group 45254; ip link delete "+link+"; nft delete element inet boxgate boxes { "+link+" }") // as another program may
	if err := w.removeAtOnce([]policy.BoxID{list[0].Box, list[1].Box, list[2].Box}); err != nil {
		t.Error(err)
	}
	if logs.FilterMessageSnippet("one by one").Len() != 1 {
		t.Error("they could be removed together")
	}
	if len(w.fw.boxes.byID) > 0 || len(w.fw.removing) > 0 {
		t.Errorf("%d boxes are there, %v are being removed", len(w.fw.boxes.byID), w.fw.removing)
	}
	left := w.everything()
	if !strings.Contains(left, " other@") {
		t.Error("another program's interface is gone")
	}
	for _, a := range []Attachment{list[0], list[2]} {
		if strings.Contains(left, network.LinkName(a.Box)) {
			t.Errorf("of %s something is left:\n%s", a.Box, left)
		}
	}
}

// TestAFailedRemovalIsRetried: a box whose removal the kernel refused is listed until a retry has removed it. If the kernel refuses
// to delete both its interface and its rules, its interface goes down, and no repair raises it.
func TestAFailedRemovalIsRetried(t *testing.T) {
	nightly.Root(t)
	w, logs := newLoggedWorld(t)
	w.fw.retry.first = time.Hour
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := netip.AddrPortFrom(outside4, w.serveTCP(w.outside, ":0", nil).Port())
	w.wait("the way of the box", func() bool { return w.reaches("one", server) })
	refused := context.WithValue(t.Context(), failing{}, []string{"remove: begun", "remove: link deleted"})
	if err := w.fw.RemoveBox(refused, "one"); err == nil {
		t.Fatal("the kernel refused, and the box is removed")
	}
	if got, want := w.fw.Unremoved(), []string{network.LinkName("one")}; !slices.Equal(got, want) {
		t.Fatalf("%v are listed, want %v", got, want)
	}
	if restored, problems := (repairer{w.fw}).RestoreBoxes(t.Context(), map[policy.BoxID]bool{"one": true}); len(restored)+len(problems) > 0 {
		t.Errorf("repaired %v, problems %v", restored, problems)
	}
	if w.reaches("one", server) {
		t.Error("the box has its network although it is closed for the rest of the gateway")
	}
	w.fw.mu.Lock()
	w.fw.retry.timer.Reset(0)
	w.fw.mu.Unlock()
	w.wait("the retry", func() bool { return len(w.fw.Unremoved()) == 0 })
	if left := w.everything(); strings.Contains(left, network.LinkName("one")) {
		t.Errorf("of the box something is left:\n%s", left)
	}
	if logs.FilterMessageSnippet("is removed, after a failed attempt").Len() != 1 {
		t.Errorf("logs: %v", logs.All())
	}
}

// TestRetriesOfARemovalSlowDown: they are repeated for as long as the kernel refuses, each time after twice the delay.
func TestRetriesOfARemovalSlowDown(t *testing.T) {
	nightly.Root(t)
	w, logs := newLoggedWorld(t)
	w.fw.mu.Lock()
	w.fw.retry.first = time.Millisecond
	w.fw.removing["lo"] = "one" // the kernel does not delete this interface
	w.fw.scheduleRemovals()
	w.fw.mu.Unlock()
	refusals := func() []time.Duration {
		var waited []time.Duration
		for _, e := range logs.FilterMessageSnippet("cannot be removed").All() {
			waited = append(waited, e.ContextMap()["waited"].(time.Duration))
		}
		return waited
	}
	w.wait("retries", func() bool { return len(refusals()) >= 4 })
	if got, want := refusals()[:4], []time.Duration{1e6, 2e6, 4e6, 8e6}; !slices.Equal(got, want) {
		t.Errorf("delays %v, want %v", got, want)
	}
	if len(w.fw.Unremoved()) != 1 {
		t.Errorf("listed: %v", w.fw.Unremoved())
	}
	w.fw.mu.Lock()
	delete(w.fw.removing, "lo")
	w.fw.mu.Unlock()
	w.wait("the end of the retries", func() bool {
		w.fw.mu.Lock()
		defer w.fw.mu.Unlock()
		return w.fw.retry.timer == nil && w.fw.retry.wait == 0
	})
}
