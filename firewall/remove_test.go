package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"

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
