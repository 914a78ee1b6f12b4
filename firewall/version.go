package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"go.uber.org/zap"

	"boxgate/policy"
)

// The kernel makes the rules of a transaction visible at once, but not the elements of its interval sets: for a moment
// packets meet new rules with sets that are old, or empty. So nothing that packets can reach is ever rewritten. A plan
// becomes a version, written and committed under names of its own while no packet can get there; the box's element in
// the map of boxes, a hash in which old and new elements carry the generation they belong to, is then exchanged in a
// transaction of its own; and the version it led to before is deleted.

// version is one writing of a box's plan. Nothing of it changes while it is there.
type version struct {
	chain  string   // what the box's element leads to
	sets   []string // addresses that the chain consults; families without any have no set
	shield *shield  // the protected ranges that the plan was compiled with; nil in a closed version
}

// shield is one writing of the protected ranges. Versions of boxes consult its sets themselves, so that a box's element
// switches plan and protected ranges together; those compiled with the same ranges share one.
type shield struct {
	serial uint64
	ranges string // the ranges as text, by which shields are found; empty: not known, of an earlier run
	users  int    // versions that are in the kernel, or may be
}

// closed leads to the static chain that refuses everything.
func closed() *version { return &version{chain: chainClosed} }

const (
	versionPrefix = "box_"       // box_{id}_{serial}_{serial of the protected ranges}
	shieldPrefix  = "protected_" // protected_{serial}
	openSuffix    = "_allowed"
)

func (v *version) openChain() string { return v.chain + openSuffix }

func (s *shield) set(f family) string {
	return shieldPrefix + strconv.FormatUint(s.serial, 10) + "_v" + f.suffix()
}

// serialsOf reads the two serials at the end of a version's chain.
func serialsOf(chain string) (own, shield uint64, ok bool) {
	parts := strings.Split(chain, "_")
	if len(parts) != 4 || parts[0]+"_" != versionPrefix {
		return 0, 0, false
	}
	own, err := strconv.ParseUint(parts[2], 10, 64)
	shield, err2 := strconv.ParseUint(parts[3], 10, 64)
	return own, shield, err == nil && err2 == nil
}

// addressSet is an interval set that is about to be written.
type addressSet struct {
	name     string
	family   family
	elements []nftables.SetElement
}

// draft is a version before it is written.
type draft struct {
	*version
	plan            policy.KernelPlan
	allowed, denied map[family]*addressSet
	missing         []*addressSet // all sets that are not there yet
}

// draft gives the plan names that nothing has had.
func (f *Firewall) draft(id policy.BoxID, plan policy.KernelPlan) *draft {
	d := &draft{plan: plan, allowed: map[family]*addressSet{}, denied: map[family]*addressSet{}}
	s, known := f.shields[fmt.Sprint(plan.Protected)]
	if !known {
		s = &shield{serial: f.nextSerial(), ranges: fmt.Sprint(plan.Protected)}
		all := append([]netip.Prefix{f.cfg.PoolV4, f.cfg.PoolV6}, plan.Protected...)
		for _, fam := range families { // each has its pool
			d.missing = append(d.missing, &addressSet{s.set(fam), fam, intervals(spans(fam, all))})
		}
	}
	s.users++
	d.version = &version{chain: fmt.Sprintf("%s%s_%d_%d", versionPrefix, id, f.nextSerial(), s.serial), shield: s}
	for _, fam := range families {
		d.allowed[fam] = d.own("_allow", fam, plan.Allowed)
		d.denied[fam] = d.own("_deny", fam, plan.Denied)
	}
	return d
}

func (f *Firewall) nextSerial() uint64 {
	f.serial++
	return f.serial
}

// own adds a set of the version's own, unless it would be empty.
func (d *draft) own(kind string, fam family, list []netip.Prefix) *addressSet {
	elements := intervals(spans(fam, list))
	if len(elements) == 0 {
		return nil
	}
	s := &addressSet{d.chain + kind + fam.suffix(), fam, elements}
	d.sets = append(d.sets, s.name)
	d.missing = append(d.missing, s)
	return s
}

// build writes a version that no packet can reach yet, and reads back what may not have arrived whole. Until the box's
// element leads to it, it is among what is to be deleted.
func (f *Firewall) build(d *draft) error {
	f.garbage = append(f.garbage, d.version)
	stamp := newStamp(d.plan.Version)
	err := f.transact(func(t *txn) {
		for _, s := range d.missing {
			t.addElements(t.addressSet(s), s.elements)
		}
		t.writePlan(d, stamp)
	}, func(c *nftables.Conn) (bool, error) { return stamped(c, d.chain, stamp) })
	if err == nil {
		err = f.verify(d.missing)
	}
	if err == nil && d.shield.ranges != "" {
		f.shields[d.shield.ranges] = d.shield
	}
	return err
}

// addressSet makes an interval set.
func (t *txn) addressSet(s *addressSet) *nftables.Set {
	return t.set(&nftables.Set{Name: s.name, Interval: true, KeyType: s.family.addrType()})
}

// verify reads large sets back: a message that is too long loses elements without an error.
func (f *Firewall) verify(sets []*addressSet) error {
	var errs []error
	for _, s := range sets {
		if len(s.elements) > elementsPerMessage {
			errs = append(errs, f.countElements(s.name, len(s.elements)))
		}
	}
	return errors.Join(errs...)
}

func (f *Firewall) countElements(set string, want int) error {
	c, err := f.connection()
	if err != nil {
		return err
	}
	got, err := c.GetSetElements(&nftables.Set{Table: table(), Name: set})
	if err != nil {
		return fmt.Errorf("nftables: set %s: %w", set, err)
	}
	if len(got) != want {
		return fmt.Errorf("nftables: set %s holds %d of %d elements", set, len(got), want)
	}
	return nil
}

// lead makes the box's packets go to the version from the next one on. It exchanges the box's element, in a transaction
// of its own; what is changed along with it must be no interval set, and no rule.
func (f *Firewall) lead(b *box, v *version, also ...func(*txn)) error {
	if err := f.settle(b); err != nil {
		return err
	}
	err := f.transact(func(t *txn) {
		for _, change := range also {
			change(t)
		}
		if b.live != nil {
			t.deleteElements(boxesMap(), nftables.SetElement{Key: ifname(b.link)})
		}
		t.addElements(boxesMap(), []nftables.SetElement{leadTo(b.link, v.chain)})
	}, func(c *nftables.Conn) (bool, error) {
		targets, err := readTargets(c)
		return targets[b.link] == v.chain, err
	})
	if err != nil {
		b.doubt = true
		return err
	}
	f.ledTo(b, v)
	return nil
}

// ledTo notes where the box's element leads now. What it led to is to be deleted.
func (f *Firewall) ledTo(b *box, v *version) {
	f.garbage = slices.DeleteFunc(f.garbage, func(g *version) bool { return g == v })
	if b.live != nil && b.live != v && b.live.chain != chainClosed {
		f.garbage = append(f.garbage, b.live)
	}
	b.live, b.doubt = v, false
}

// settle finds out where the box's element leads, if that could not be read after a failure.
func (f *Firewall) settle(b *box) error {
	if !b.doubt {
		return nil
	}
	c, err := f.connection()
	if err != nil {
		return err
	}
	targets, err := readTargets(c)
	if err != nil {
		return err
	}
	v := closed()
	for _, g := range append(f.garbage, b.live) {
		if g != nil && g.chain == targets[b.link] {
			v = g
		}
	}
	if targets[b.link] == "" {
		v = nil
	}
	f.ledTo(b, v)
	return nil
}

// collect deletes what no element leads to any more. What cannot be deleted does no harm, and is tried again the next
// time.
func (f *Firewall) collect() {
	if len(f.garbage) == 0 || f.discard(f.garbage, false) == nil {
		f.garbage = nil
		return
	}
	// Some of it may have never been there, or somebody else's rule holds it.
	var left []*version
	var errs []error
	for _, v := range f.garbage {
		if err := f.discard([]*version{v}, true); err != nil {
			left, errs = append(left, v), append(errs, err)
		}
	}
	f.garbage = left
	if err := errors.Join(errs...); err != nil {
		f.cfg.Log.Warn("rules that were replaced are not deleted yet", zap.Error(err))
	}
}

// discard deletes versions, and the protected ranges that no others were compiled with. With make, what is missing is made
// first, since deleting it would fail.
func (f *Firewall) discard(versions []*version, make bool) error {
	users := map[*shield]int{}
	err := f.transact(func(t *txn) {
		for _, v := range versions {
			t.discard(v, make)
			users[v.shield]++
		}
		for s, n := range users {
			if s != nil && s.users == n {
				t.discardShield(s, make)
			}
		}
	}, func(*nftables.Conn) (bool, error) { return false, nil })
	if err != nil {
		return err
	}
	for s, n := range users {
		if s == nil {
			continue
		}
		if s.users -= n; s.users == 0 && f.shields[s.ranges] == s {
			delete(f.shields, s.ranges)
		}
	}
	return nil
}

func (t *txn) discard(v *version, make bool) {
	for _, chain := range []string{v.chain, v.openChain()} {
		if v.chain == "" { // protected ranges without a box
			break
		}
		if make {
			t.chain(chain)
		}
	}
	for _, chain := range []string{v.chain, v.openChain()} {
		if v.chain != "" {
			t.c.DelChain(&nftables.Chain{Name: chain, Table: t.table})
		}
	}
	for _, name := range v.sets {
		t.discardSet(name, make)
	}
}

func (t *txn) discardShield(s *shield, make bool) {
	for _, f := range families {
		t.discardSet(s.set(f), make)
	}
}

// discardSet deletes an address set. Its name ends in the family.
func (t *txn) discardSet(name string, make bool) {
	if make {
		f := v4
		if strings.HasSuffix(name, v6.suffix()) {
			f = v6
		}
		t.addressSet(&addressSet{name: name, family: f})
	}
	t.c.DelSet(&nftables.Set{Name: name, Table: t.table})
}
