package firewall

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"boxgate/policy"
)

// versions lists the chains and sets in the table that belong to plans and protected ranges.
func (w *world) versions() []string {
	w.t.Helper()
	var out []string
	w.must(w.in(w.gateway, func() error {
		listing, err := exec.Command("nft", "list", "table", "inet", tableName).CombinedOutput()
		for line := range strings.Lines(string(listing)) {
			f := strings.Fields(line)
			if len(f) > 1 && (strings.HasPrefix(f[1], versionPrefix) || strings.HasPrefix(f[1], shieldPrefix)) {
				out = append(out, f[1])
			}
		}
		return err
	}))
	slices.Sort(out)
	return out
}

// A gateway that dies between writing a plan and deleting the one before leaves both. The next start finds out which is in
// force, keeps that, and deletes the other, however often it happens.
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
		w.must(w.fw.build(w.fw.draft("one", other)))
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

// What is replaced goes, also while boxes change one after the other to other protected ranges.
func TestReplacedPlansAndRangesAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	for i := range 5 {
		p := allow("198.51.100.0/28", "2001:db8:2::/64")
		p.Protected = append(p.Protected, manyPrefixes(i+1, 1)...)
		w.apply("one", p)
		w.apply("two", p)
		// Two chains and two sets for each box, and the ranges that they share.
		if got := w.versions(); len(got) != 2*4+2 {
			t.Fatalf("after change %d: %v", i, got)
		}
	}
}

// Somebody else's rule holds what is to be deleted: that stays, the rest goes, and nothing waits for it.
func TestWhatCannotBeDeletedBlocksNothing(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	w.shell(w.gateway, "nft add chain inet boxgate mine; nft add rule inet boxgate mine jump "+w.fw.boxes["one"].live.openChain())
	server := w.serveTCP(w.outside, ":0", nil)
	for range 3 {
		w.apply("one", allow("198.51.100.0/29"))
		if _, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "x"); err != nil {
			t.Error(err)
		}
	}
	if len(w.fw.garbage) != 1 {
		t.Errorf("%d versions are left", len(w.fw.garbage))
	}
	w.shell(w.gateway, "nft delete chain inet boxgate mine")
	w.apply("one", allow("198.51.100.0/28"))
	if len(w.fw.garbage) != 0 {
		t.Errorf("%d versions are left", len(w.fw.garbage))
	}
}

// A version that does not arrive whole changes nothing: the plan before stays in force.
func TestAPlanThatIsNotWholeIsNotPutInForce(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	before := w.versions()
	d := w.fw.draft("one", allow("198.51.100.0/24"))
	d.missing = append(d.missing, &addressSet{d.chain + "_deny4", v4, intervals(spans(v4, prefixes("192.0.2.0/24")))})
	d.missing[len(d.missing)-1].elements = append(d.missing[len(d.missing)-1].elements, nftables.SetElement{Key: []byte{1}})
	if err := w.fw.build(d); err == nil {
		t.Fatal("a malformed set was taken")
	}
	w.fw.collect()
	if got := w.versions(); !slices.Equal(got, before) {
		t.Errorf("%v, want %v", got, before)
	}
	w.flushWire("one")
}

// The kernel's answer to the change is lost, and so is what could be read back: the next change finds out where it stands.
func TestALostAnswerIsFoundOut(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	for _, happened := range []bool{true, false} {
		b, d := w.fw.boxes["one"], w.fw.draft("one", allow("198.51.100.0/29"))
		w.must(w.fw.build(d))
		if old := b.live; happened {
			w.must(w.fw.lead(b, d.version))
			b.live = old
			w.fw.garbage = slices.DeleteFunc(w.fw.garbage, func(v *version) bool { return v == old })
			w.fw.garbage = append(w.fw.garbage, d.version)
		}
		b.doubt = true
		w.fw.collect()
		w.flushWire("one")
		w.apply("one", allow("198.51.100.0/28"))
		w.flushWire("one")
		if got := w.versions(); len(got) != 5 || len(w.fw.garbage) != 0 {
			t.Errorf("the table holds %v, %d are to be deleted", got, len(w.fw.garbage))
		}
	}
}
