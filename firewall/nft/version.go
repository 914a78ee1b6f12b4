package nft

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The kernel makes the rules of a transaction visible atomically, but not the elements of its interval sets: for a moment
// packets meet new rules with old or empty sets. So nothing that packets can reach is ever rewritten. A plan becomes a
// version, written and committed under new names while no packet can get there. Then the box's element in the map of boxes
// (a hash, in which old and new elements carry their generation) is exchanged in a separate transaction, and the previous
// version is deleted.

// version is a plan as written to the table. It is immutable. Boxes with the same plan share one, because the cost of a
// transaction in the kernel grows with the sets and rules of the table.
type version struct {
	chain  string   // target of its boxes' elements
	sets   []string // address sets of the chain; a family without addresses has no set
	shield *shield  // the protected ranges that the plan was compiled with; nil: chainClosed
	plan   digest   // key in Table.versions; zero: unknown, from an earlier run

	sourced bool          // connections leave from given addresses, checked by leaveChain
	from    policy.Source // unknown for a version from an earlier run
	users   int           // known boxes whose elements point to it
}

// shield is a set of protected ranges as written to the table. Versions use its sets directly, so that a box's element
// switches plan and protected ranges together. Versions compiled with the same ranges share one.
type shield struct {
	serial uint64
	ranges string // the ranges as text, the key in Table.shields; empty: unknown, from an earlier run
	users  int    // versions that are, or may be, in the kernel
}

// closedVersion returns the version of the static chain that refuses everything.
func closedVersion() *version { return &version{chain: chainClosed} }

const (
	versionPrefix = "plan_"      // plan_{serial}_{serial of the protected ranges}
	shieldPrefix  = "protected_" // protected_{serial}
	openSuffix    = "_allowed"
	leaveSuffix   = "_leave"
)

func (v *version) openChain() string  { return v.chain + openSuffix }
func (v *version) leaveChain() string { return v.chain + leaveSuffix }

// chains returns the chains of the version.
func (v *version) chains() []string {
	if v.chain == "" { // protected ranges without a box
		return nil
	}
	list := []string{v.chain, v.openChain()}
	if v.sourced {
		list = append(list, v.leaveChain())
	}
	return list
}

func (s *shield) set(f network.Family) string {
	return shieldPrefix + strconv.FormatUint(s.serial, 10) + "_v" + suffix(f)
}

// serialsOf parses the two serials in the name of a version's chain.
func serialsOf(chain string) (own, shield uint64, ok bool) {
	parts := strings.Split(chain, "_")
	if len(parts) != 3 || parts[0]+"_" != versionPrefix {
		return 0, 0, false
	}
	own, err := strconv.ParseUint(parts[1], 10, 64)
	shield, err2 := strconv.ParseUint(parts[2], 10, 64)
	return own, shield, err == nil && err2 == nil
}

// addressSet is an interval set to be written.
type addressSet struct {
	name     string
	family   network.Family
	elements []nftables.SetElement
}

// draft is a version that has not been written yet.
type draft struct {
	*version
	plan            policy.KernelPlan
	allowed, denied map[network.Family]*addressSet
	cluster         map[network.Family]*addressSet
	missing         []*addressSet // sets that do not exist yet
}

// Change is a new plan for a box.
type Change struct {
	*Entry
	Plan policy.KernelPlan
}

// move switches the packets of a box to a version.
type move struct {
	*Entry
	to *version
}

// Replace writes new versions and then switches the boxes' packets to them. The number of transactions does not depend on
// the number of boxes. A version that another box uses is shared. An error means that all boxes still use their previous
// versions.
func (tbl *Table) Replace(ctx context.Context, changes ...Change) error {
	drafts, there, back := tbl.drafts(changes)
	if err := errors.Join(tbl.writeDrafts(drafts), fault.At(ctx, "plan: built")); err != nil {
		return err
	}
	if err := tbl.switchTo(there); err != nil {
		return err
	}
	if err := fault.At(ctx, "plan: written"); err != nil {
		return errors.Join(err, tbl.switchTo(back))
	}
	return nil
}

// Restore writes the plans of boxes and registers their interfaces. A new table contains no boxes before that.
func (tbl *Table) Restore(changes ...Change) error {
	drafts, there, _ := tbl.drafts(changes)
	if err := tbl.writeDrafts(drafts); err != nil {
		return err
	}
	return tbl.switchTo(there, func(t *txn) {
		for _, c := range changes {
			t.register(&tbl.cfg, c.Entry)
		}
	})
}

// drafts returns drafts of the plans that no box has yet, and the moves that switch the boxes to their versions and back.
func (tbl *Table) drafts(changes []Change) (drafts []*draft, there, back []move) {
	shields, made := map[string]*shield{}, map[digest]*version{}
	for _, c := range changes {
		plan := tbl.digest(c.Plan)
		v := tbl.versions[plan]
		if v == nil {
			v = made[plan]
		}
		if v == nil {
			d := tbl.draft(c.Plan, shields)
			d.version.plan = plan
			v, made[plan] = d.version, d.version
			drafts = append(drafts, d)
		}
		there, back = append(there, move{c.Entry, v}), append(back, move{c.Entry, c.live})
	}
	return drafts, there, back
}

// draft prepares a plan under new names. made collects the protected ranges of the drafts of one change, for later drafts
// to share.
func (tbl *Table) draft(plan policy.KernelPlan, made map[string]*shield) *draft {
	d := &draft{plan: plan, allowed: map[network.Family]*addressSet{}, denied: map[network.Family]*addressSet{}, cluster: map[network.Family]*addressSet{}}
	ranges := tbl.rangesText(plan.Protected)
	s := tbl.shields[ranges]
	if s == nil {
		s = made[ranges]
	}
	if s == nil {
		s = &shield{serial: tbl.nextSerial(), ranges: ranges}
		made[ranges] = s
		all := append([]netip.Prefix{tbl.cfg.PoolV4, tbl.cfg.PoolV6}, plan.Protected...)
		for _, fam := range network.Families { // each has its pool
			d.missing = append(d.missing, &addressSet{s.set(fam), fam, intervals(spans(fam, all))})
		}
	}
	s.users++
	d.version = &version{chain: fmt.Sprintf("%s%d_%d", versionPrefix, tbl.nextSerial(), s.serial), shield: s, sourced: plan.Sourced, from: plan.Source}
	for _, fam := range network.Families {
		d.allowed[fam] = d.addSet("_allow", fam, plan.Allowed)
		d.denied[fam] = d.addSet("_deny", fam, plan.Denied)
		d.cluster[fam] = d.addSet("_cluster", fam, plan.Cluster)
	}
	return d
}

func (tbl *Table) nextSerial() uint64 {
	tbl.serial++
	return tbl.serial
}

// addSet adds a set that belongs to the version, unless it would be empty.
func (d *draft) addSet(kind string, fam network.Family, list []netip.Prefix) *addressSet {
	elements := intervals(spans(fam, list))
	if len(elements) == 0 {
		return nil
	}
	s := &addressSet{d.chain + kind + suffix(fam), fam, elements}
	d.sets = append(d.sets, s.name)
	d.missing = append(d.missing, s)
	return s
}

// writeDrafts writes versions that no packet can reach yet, and verifies sets that may be incomplete. A version is in
// Table.garbage until a box's element points to it.
func (tbl *Table) writeDrafts(drafts []*draft) error {
	if len(drafts) == 0 {
		return nil
	}
	var missing []*addressSet
	for _, d := range drafts {
		tbl.garbage = append(tbl.garbage, d.version)
		missing = append(missing, d.missing...)
	}
	var chain, stamp string // of the last draft, since a transaction is atomic
	err := tbl.transact(func(t *txn) {
		for _, d := range drafts {
			for _, s := range d.missing {
				t.addElements(t.addressSet(s), s.elements)
			}
			chain, stamp = d.chain, newStamp()
			t.writePlan(d, stamp)
		}
	}, func(c *nftables.Conn) (bool, error) { return stamped(c, chain, stamp) })
	if err == nil {
		err = tbl.verify(missing)
	}
	if err == nil {
		for _, d := range drafts {
			tbl.shields[d.shield.ranges] = d.shield
		}
	}
	return err
}

// addressSet creates an interval set.
func (t *txn) addressSet(s *addressSet) *nftables.Set {
	return t.set(&nftables.Set{Name: s.name, Interval: true, KeyType: addrType(s.family)})
}

// verify reads large sets back, because a netlink message that is too long silently loses elements.
func (tbl *Table) verify(sets []*addressSet) error {
	var errs []error
	for _, s := range sets {
		if len(s.elements) > elementsPerMessage {
			errs = append(errs, tbl.countElements(s.name, len(s.elements)))
		}
	}
	return errors.Join(errs...)
}

// countElements compares the number of a set's elements in the kernel with the number written. It does not decode them, which
// would take longer than to write them.
func (tbl *Table) countElements(set string, want int) error {
	c, err := tbl.forQueries()
	if err != nil {
		return err
	}
	request, err := elementsRequest(set, netlink.Dump, nil)
	if err != nil {
		return err
	}
	answers, err := c.Execute(request)
	got := 0
	for _, a := range answers {
		n, countErr := countIn(a.Data)
		got, err = got+n, errors.Join(err, countErr)
	}
	if err != nil {
		tbl.queries = nil // it may have unread answers
		go func() { _ = c.Close() }()
		return fmt.Errorf("nftables: set %s: %w", set, err)
	}
	if got != want {
		return fmt.Errorf("nftables: set %s holds %d of %d elements", set, got, want)
	}
	return nil
}

// countIn returns the number of elements in one answer to a request for the elements of a set.
func countIn(answer []byte) (n int, err error) {
	const header = 4 // struct nfgenmsg
	if len(answer) < header {
		return 0, errors.New("the answer is too short")
	}
	ad, err := netlink.NewAttributeDecoder(answer[header:])
	if err != nil {
		return 0, fmt.Errorf("the answer: %w", err)
	}
	for ad.Next() {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		ad.Nested(func(elements *netlink.AttributeDecoder) error {
			n += elements.Len()
			return nil
		})
	}
	return n, ad.Err()
}

// switchTo switches the packets of boxes to versions. It exchanges the boxes' elements in a separate transaction, which must
// not change interval sets or rules. Without another change, it skips boxes that already have their version.
func (tbl *Table) switchTo(moves []move, also ...func(*txn)) error {
	if err := tbl.resolveDoubts(moves); err != nil {
		return err
	}
	if len(also) == 0 {
		moves = slices.DeleteFunc(slices.Clone(moves), func(m move) bool { return m.live == m.to })
	}
	if len(moves) == 0 {
		return nil
	}
	leaves, err := tbl.leaveChanges(moves)
	if err != nil {
		return err
	}
	err = tbl.transact(func(t *txn) {
		for _, change := range also {
			change(t)
		}
		leaves.apply(t)
		var before, after []nftables.SetElement
		for _, m := range moves {
			if m.live != nil {
				before = append(before, nftables.SetElement{Key: ifname(m.Link)})
			}
			after = append(after, gotoElement(m.Link, m.to.chain))
		}
		t.deleteElements(boxesMap(), before...)
		t.addElements(boxesMap(), after)
	}, func(c *nftables.Conn) (bool, error) {
		targets, err := readTargets(c, boxesMap())
		led := !slices.ContainsFunc(moves, func(m move) bool { return targets[m.Link] != m.to.chain })
		// Elements that did not change are no proof.
		return led && slices.ContainsFunc(moves, func(m move) bool { return m.Chain() != m.to.chain }), err
	})
	for _, m := range moves {
		if err != nil {
			m.liveUnknown = true
			continue
		}
		tbl.setLive(m.Entry, m.to)
	}
	return err
}

// resolveDoubts reads where the boxes' elements point, if that is in doubt after a failure.
func (tbl *Table) resolveDoubts(moves []move) error {
	if !slices.ContainsFunc(moves, func(m move) bool { return m.liveUnknown }) {
		return nil
	}
	c, err := tbl.forChanges()
	if err != nil {
		return err
	}
	targets, err := readTargets(c, boxesMap())
	if err != nil {
		return err
	}
	for _, m := range moves {
		if m.liveUnknown {
			tbl.setLiveTarget(m.Entry, targets)
		}
	}
	return nil
}

// setLiveTarget records where the box's element points.
func (tbl *Table) setLiveTarget(e *Entry, targets map[string]string) {
	v := closedVersion()
	for _, g := range slices.Concat(tbl.garbage, slices.Collect(maps.Values(tbl.versions)), []*version{e.live}) {
		if g != nil && g.chain == targets[e.Link] {
			v = g
		}
	}
	if targets[e.Link] == "" {
		v = nil
	}
	tbl.setLive(e, v)
}

// Collect deletes versions without an element. If one cannot be deleted, that is harmless and is retried at the next call.
func (tbl *Table) Collect() {
	if len(tbl.garbage) == 0 || tbl.discard(tbl.garbage, false) == nil {
		tbl.garbage = nil
		return
	}
	// Some may never have been written, or another program's rule refers to them.
	var left []*version
	var errs []error
	for _, v := range tbl.garbage {
		if err := tbl.discard([]*version{v}, true); err != nil {
			left, errs = append(left, v), append(errs, err)
		}
	}
	tbl.garbage = left
	if err := errors.Join(errs...); err != nil {
		tbl.cfg.Log.Warn("replaced rules are not deleted yet", zap.Error(err))
	}
}

// discard deletes versions, and protected ranges that no other version uses. With make, missing objects are created first,
// since deleting them would fail otherwise.
func (tbl *Table) discard(versions []*version, make bool) error {
	users := map[*shield]int{}
	err := tbl.transact(func(t *txn) {
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
		if s.users -= n; s.users == 0 && tbl.shields[s.ranges] == s {
			delete(tbl.shields, s.ranges)
		}
	}
	return nil
}

func (t *txn) discard(v *version, make bool) {
	for _, chain := range v.chains() {
		if make {
			t.chain(chain)
		}
	}
	for _, chain := range v.chains() {
		t.c.DelChain(&nftables.Chain{Name: chain, Table: t.table})
	}
	for _, name := range v.sets {
		t.discardSet(name, make)
	}
}

func (t *txn) discardShield(s *shield, make bool) {
	for _, f := range network.Families {
		t.discardSet(s.set(f), make)
	}
}

// discardSet deletes an address set. Its name ends in the family.
func (t *txn) discardSet(name string, make bool) {
	if make {
		f := network.V4
		if strings.HasSuffix(name, suffix(network.V6)) {
			f = network.V6
		}
		t.addressSet(&addressSet{name: name, family: f})
	}
	t.c.DelSet(&nftables.Set{Name: name, Table: t.table})
}

// writePlan writes the chains of a version. The zero plan refuses everything except DNS and the sink.
func (t *txn) writePlan(d *draft, stamp string) {
	chain, open := d.chain, d.openChain()
	t.chain(chain)
	t.chain(open)
	for _, f := range network.Families {
		if s := d.cluster[f]; s != nil {
			t.rule(chain, "services of the cluster: the proxy decides", tcp, destInSet(f, s.name), jumpTo(chainProxy))
		}
	}
	for _, f := range network.Families {
		t.rule(chain, stamp, destInSet(f, d.shield.set(f)), refuse(name.ReasonProtectedRange))
	}
	for _, f := range network.Families {
		if s := d.denied[f]; s != nil {
			t.rule(chain, "", destInSet(f, s.name), refuse(name.ReasonDeniedCIDR))
		}
	}
	t.onPorts(chain, "QUIC: names and requests are read from TCP", udp, d.plan.RejectUDP, refuse(name.ReasonProtocol))
	through := jumpTo(chainPass)
	if d.sourced {
		t.writeLeave(d)
		through = jumpTo(d.leaveChain())
	}
	pass := jumpTo(open)
	if ports := d.plan.SteerAllowed; !ports.All && len(ports.Ports) == 0 {
		pass = through
	}
	for _, f := range network.Families {
		if s := d.allowed[f]; s != nil {
			t.rule(chain, "", destInSet(f, s.name), pass)
		}
	}
	t.onPorts(chain, "only to allowed addresses", udp, d.plan.RejectOther, refuse(name.ReasonProtocol))
	t.steer(chain, d.plan.SteerOther)
	if d.plan.DefaultAllow {
		t.rule(chain, "not denied", through)
	} else {
		t.rule(chain, "", refuse(name.ReasonNotAllowed))
	}
	t.steer(open, d.plan.SteerAllowed)
	t.rule(open, "", through)
}

// steer sends TCP to the given ports to the proxy.
func (t *txn) steer(chain string, ports name.PortSet) {
	t.onPorts(chain, "a name or a header rule decides", tcp, ports, jumpTo(chainProxy))
}

// fewPorts is how many ports get a rule each. A set for them would cost as much per packet, and to name a new set the
// kernel searches the names of all sets of the table.
const fewPorts = 4

// onPorts applies a verdict to packets of a transport protocol to the ports.
func (t *txn) onPorts(chain, why string, transport match, ports name.PortSet, what match) {
	list := slices.Compact(slices.Sorted(slices.Values(ports.Ports)))
	switch {
	case ports.All:
		t.rule(chain, why, transport, what)
	case len(list) <= fewPorts:
		for _, p := range list {
			t.rule(chain, why, transport, destPort(p), what)
		}
	default:
		var elements []nftables.SetElement
		for _, p := range list {
			elements = append(elements, nftables.SetElement{Key: big16(p)})
		}
		s := t.anonymous(nftables.TypeInetService, elements)
		t.rule(chain, why, transport, match{port(), lookup(s)}, what)
	}
}

// newStamp returns a unique comment that proves that a transaction was committed, see stamped.
func newStamp() string { return "write " + strings.ToLower(rand.Text()[:10]) }

// span is a range of addresses of one family, both ends included.
type span struct{ first, last netip.Addr }

// spans returns the prefixes of the family as sorted ranges that neither overlap nor touch. The kernel refuses overlapping
// ranges, so they are merged here.
func spans(f network.Family, prefixes []netip.Prefix) []span {
	var in []span
	for _, p := range prefixes {
		if p.IsValid() && network.FamilyOf(p.Addr()) == f {
			in = append(in, span{p.Masked().Addr(), lastOf(p)})
		}
	}
	slices.SortFunc(in, func(a, b span) int { return a.first.Compare(b.first) })
	var out []span
	for _, s := range in {
		if n := len(out); n > 0 {
			end := &out[n-1].last
			if next := end.Next(); !next.IsValid() || s.first.Compare(next) <= 0 {
				if end.Less(s.last) {
					*end = s.last
				}
				continue
			}
		}
		out = append(out, s)
	}
	return out
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// intervals converts ranges to the kernel's format: a start, and as end the first address after the range. A range up to
// the very last address has no end.
func intervals(ranges []span) []nftables.SetElement {
	out := make([]nftables.SetElement, 0, 2*len(ranges))
	for _, s := range ranges {
		out = append(out, nftables.SetElement{Key: s.first.AsSlice()})
		if next := s.last.Next(); next.IsValid() {
			out = append(out, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}
