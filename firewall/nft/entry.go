package nft

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Entry is the state of one box in the table.
type Entry struct {
	ID      policy.BoxID // empty: left by an earlier run, only Link is known
	Link    string       // the box's interface on the host
	Sources []netip.Addr // allowed source addresses
	Mark    uint32       // of its connections
	// SendRate is how many bytes per second the box may send; 0: the rate of all boxes; [policy.Unlimited]: any number.
	SendRate int64
	// MaxSend is a bound on SendRate whose bucket survives changes of SendRate; 0 and [policy.Unlimited]: no bound.
	MaxSend int64

	live         *version // target of its element in the map of boxes; nil: it has no element
	liveUnknown  bool     // the target of its element is unknown, see resolveDoubts
	hasSendChain bool     // it may have a chain that limits its send rate
}

// NewEntry returns the entry of a box that is not in the table yet.
func NewEntry(id policy.BoxID, sources ...netip.Addr) Entry {
	return Entry{ID: id, Link: network.LinkName(id), Sources: sources, Mark: network.BoxMark(id)}
}

// Chain returns the chain of the box's plan; empty if the box is not in the table.
func (e *Entry) Chain() string {
	if e.live == nil {
		return ""
	}
	return e.live.chain
}

// Reset resets the entry after the table was replaced: the box is not in the new one.
func (e *Entry) Reset() { e.live, e.hasSendChain = nil, false }

// Registration is an entry to be added to the kernel. Old is its previous state, if any.
type Registration struct {
	*Entry
	Old Entry
}

// Register adds the boxes' interfaces to the table, in one transaction. A box keeps the plan of its old entry; without one
// it is closed.
func (tbl *Table) Register(list ...Registration) error {
	for _, r := range list {
		r.live = closedVersion()
		if r.Old.live != nil {
			r.live = r.Old.live
		}
		r.hasSendChain = r.Old.hasSendChain
	}
	err := tbl.transact(func(t *txn) {
		s := newStaticSets()
		for _, r := range list {
			for _, addr := range r.Old.Sources {
				if !slices.Contains(r.Sources, addr) {
					t.deleteElements(s.sources[network.FamilyOf(addr)], sourceKey(r.Link, addr))
				}
			}
			t.register(&tbl.cfg, r.Entry)
			t.addElements(boxesMap(), []nftables.SetElement{gotoElement(r.Link, r.live.chain)})
		}
	}, func(c *nftables.Conn) (bool, error) {
		targets, err := readTargets(c, boxesMap())
		done := !slices.ContainsFunc(list, func(r Registration) bool {
			return r.Old.live != nil || targets[r.Link] != r.live.chain
		})
		return done, err
	})
	if err == nil {
		for _, r := range list {
			r.hasSendChain = r.SendRate != 0
		}
	}
	return err
}

// Unregister removes boxes from the table, in one transaction. It keeps the connection marks that are true in marks,
// because other boxes share them. If another program has deleted the table, that counts as success. Afterwards the entries
// have no plan: a box that is registered again is closed.
func (tbl *Table) Unregister(marks map[uint32]bool, list ...*Entry) error {
	none := map[netip.Addr]netip.Addr{}
	for _, e := range list {
		for _, a := range e.Sources {
			none[a] = netip.Addr{}
		}
	}
	leaves, err := tbl.leaveChangesTo(none)
	if err != nil { // they were deleted by another program; remains are corrected for the next box with the address
		leaves = leaveChanges{}
	}
	err = tbl.transact(func(t *txn) {
		leaves.apply(t)
		keep := map[uint32]bool{}
		maps.Copy(keep, marks)
		for _, e := range list {
			t.unregister(e, keep[e.Mark])
			keep[e.Mark] = true // otherwise it is deleted twice
		}
	}, func(c *nftables.Conn) (bool, error) {
		targets, err := readTargets(c, boxesMap())
		if err != nil {
			return gone(c)
		}
		return !slices.ContainsFunc(list, func(e *Entry) bool { _, there := targets[e.Link]; return there }), nil
	})
	if err != nil {
		return err
	}
	for _, e := range list {
		tbl.setLive(e, nil)
		e.hasSendChain = false
	}
	tbl.Collect()
	return nil
}

// unregister removes the interface from the static sets.
func (t *txn) unregister(e *Entry, keepMark bool) {
	s := newStaticSets()
	t.deleteElements(s.boxes, nftables.SetElement{Key: ifname(e.Link)})
	t.deleteElements(s.marks, nftables.SetElement{Key: ifname(e.Link)})
	t.deleteElements(s.replies, e.reply())
	if !keepMark {
		t.deleteElements(s.flows, nftables.SetElement{Key: native32(e.Mark | network.FlowForwarded)})
	}
	for _, a := range e.Sources {
		t.deleteElements(s.sources[network.FamilyOf(a)], sourceKey(e.Link, a))
	}
	if e.SendRate != 0 || e.hasSendChain {
		t.eraseSend(e.Link)
	}
	t.eraseNote(e.Link)
}

// register adds the interface to the static sets, except the map that selects its plan.
func (t *txn) register(c *Config, e *Entry) {
	s := newStaticSets()
	for _, a := range e.Sources {
		t.addElements(s.sources[network.FamilyOf(a)], []nftables.SetElement{sourceKey(e.Link, a)})
	}
	t.addElements(s.marks, []nftables.SetElement{{Key: ifname(e.Link), Val: native32(e.Mark)}})
	t.addElements(s.flows, []nftables.SetElement{{Key: native32(e.Mark | network.FlowForwarded)}})
	t.addElements(s.replies, []nftables.SetElement{e.reply()})
	t.writeSend(c, e, "")
}

func (e *Entry) reply() nftables.SetElement {
	return nftables.SetElement{Key: append(ifname(e.Link), native32(e.Mark|network.FlowForwarded)...)}
}

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func sourceKey(link string, a netip.Addr) nftables.SetElement {
	return nftables.SetElement{Key: append(ifname(link), a.AsSlice()...)}
}

// gotoElement returns the map element that sends the packets of an interface's box to the chain.
func gotoElement(link, chain string) nftables.SetElement {
	return nftables.SetElement{Key: ifname(link), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

// readTargets returns the chain that each interface's element in a verdict map points to.
func readTargets(c *nftables.Conn, verdicts *nftables.Set) (map[string]string, error) {
	elements, err := c.GetSetElements(verdicts)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	targets := map[string]string{}
	for _, e := range elements {
		verdict, err := netlink.NewAttributeDecoder(e.Val)
		if err != nil {
			return nil, fmt.Errorf("nftables: %w", err)
		}
		for verdict.Next() {
			if verdict.Type() == unix.NFTA_VERDICT_CHAIN {
				targets[linkOfKey(e.Key)] = verdict.String()
			}
		}
	}
	return targets, nil
}

// linkOfKey reads the interface name from a key that is or begins with one.
func linkOfKey(key []byte) string {
	return string(bytes.TrimRight(key[:min(len(key), unix.IFNAMSIZ)], "\x00"))
}

// A box with its own send rate has a chain named after its interface, which an element of a map points to. The element is
// always the same, so adding it twice is harmless. A change of the rate rewrites the chain's rules, which the kernel
// exchanges atomically: no packet passes between them.

// sendsMap maps the interfaces of boxes with their own send rate to their chains.
func sendsMap() *nftables.Set {
	return &nftables.Set{Table: table(), Name: "sends", IsMap: true, KeyType: nftables.TypeIFName,
		KeyByteOrder: binaryutil.NativeEndian, DataType: nftables.TypeVerdict}
}

const sendPrefix = "send_" // send_{interface}

func sendChain(link string) string { return sendPrefix + link }

// sendLink returns the interface whose send rate a chain limits, or "".
func sendLink(chain string) string {
	link, _ := strings.CutPrefix(chain, sendPrefix)
	if link == chain {
		return ""
	}
	return link
}

// sendOver matches packets that exceed a rate. The bucket holds one second's worth.
func sendOver(rate uint64) *expr.Limit {
	return &expr.Limit{Type: expr.LimitTypePktBytes, Rate: rate, Unit: expr.LimitTimeSecond, Over: true}
}

// writeSend writes the chain of a box with its own send rate, with the stamp, and sends the box's packets there. If the box
// no longer has its own rate, writeSend removes the chain.
// A rate below that of all boxes, or below its own bound, does not replace those limits: a new chain starts with a full
// bucket, and a client that may lower the rate must not gain bytes by doing so again and again. The buckets of the other
// limits are in sets, which survive the chain.
func (t *txn) writeSend(c *Config, e *Entry, stamp string) {
	if e.SendRate == 0 {
		if e.hasSendChain {
			t.eraseSend(e.Link)
		}
		return
	}
	chain := sendChain(e.Link)
	t.chain(chain)
	if e.SendRate > 0 {
		t.rule(chain, "bytes a second of this box", match{sendOver(uint64(e.SendRate))}, counted(countSent), drop())
	}
	if e.MaxSend > 0 && !policy.Exceeds(e.SendRate, e.MaxSend) {
		t.rule(chain, "most bytes a second of this box", perInterface(&nftables.Set{Name: mostSet}, sendOver(uint64(e.MaxSend))), counted(countSent), drop())
	}
	if c.SendRate > 0 && !policy.Exceeds(e.SendRate, int64(c.SendRate)) {
		t.rule(chain, "bytes a second per box", perInterface(&nftables.Set{Name: sentSet}, sendOver(c.SendRate)), counted(countSent), drop())
	}
	t.rule(chain, stamp, jumpTo(chainSource))
	t.addElements(sendsMap(), []nftables.SetElement{gotoElement(e.Link, chain)})
}

// eraseSend removes the chain of an interface and its map element. They need not exist.
func (t *txn) eraseSend(link string) {
	chain := sendChain(link)
	t.chain(chain)
	t.addElements(sendsMap(), []nftables.SetElement{gotoElement(link, chain)})
	t.deleteElements(sendsMap(), nftables.SetElement{Key: ifname(link)})
	t.c.DelChain(&nftables.Chain{Name: chain, Table: t.table})
	t.deleteMostBucket(link)
}

// deleteMostBucket removes the bucket of an interface's bound. It need not exist.
func (t *txn) deleteMostBucket(link string) {
	set := &nftables.Set{Table: t.table, Name: mostSet, Dynamic: true, HasTimeout: true, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian}
	t.addElements(set, []nftables.SetElement{{Key: ifname(link)}})
	t.deleteElements(set, nftables.SetElement{Key: ifname(link)})
}

// SetSendRate changes the send rate of a registered box in bytes per second, and its bound. On error the previous ones stay
// active.
func (tbl *Table) SetSendRate(e *Entry, rate, most int64) error {
	next := *e
	next.SendRate, next.MaxSend = rate, most
	stamp := newStamp()
	err := tbl.transact(func(t *txn) {
		if most != e.MaxSend {
			t.deleteMostBucket(e.Link)
		}
		t.writeSend(&tbl.cfg, &next, stamp)
	}, func(c *nftables.Conn) (bool, error) {
		if rate != 0 {
			return stamped(c, sendChain(e.Link), stamp)
		}
		targets, err := readTargets(c, sendsMap())
		_, there := targets[e.Link]
		return err == nil && !there, err
	})
	if err == nil {
		e.SendRate, e.MaxSend, e.hasSendChain = rate, most, rate != 0
	}
	return err
}

// Connections that the kernel forwards for a box leave from the host address that a map (one per family) has for the box's
// address, or from an address that the kernel chooses. The elements change in the same transaction as the one that selects
// the plan, and a plan with a source address refuses packets unless the map has that address. So a lost element closes the
// box, and never makes it use another address.

// leavesMap maps the address of a box to the host address that its connections leave from.
func leavesMap(f network.Family) *nftables.Set {
	return &nftables.Set{Table: table(), Name: "leaves" + suffix(f), IsMap: true, KeyType: addrType(f), DataType: addrType(f)}
}

// lookupLeave loads the address that the sender's connections leave from. Without one it ends the rule.
func lookupLeave(f network.Family) match {
	return match{addr(f, true, r1), &expr.Lookup{SourceRegister: r1, DestRegister: r1, IsDestRegSet: true, SetName: leavesMap(f).Name}}
}

// writeHide writes the translation of the boxes' addresses, which must not be visible outside.
func (t *txn) writeHide(c *Config, s *staticSets) {
	t.rule(chainHide, "", marked(network.MarkForward), notToBox(), jumpTo(chainHideBox))
	for _, f := range network.Families {
		load := lookupLeave(f)
		if to, ok := load[len(load)-1].(*expr.Lookup); ok {
			to.SetID = s.leaves[f].ID
		}
		t.rule(chainHideBox, "source addresses of boxes", ofFamily(f), load,
			match{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f), RegAddrMin: r1}})
	}
	t.rule(chainHideBox, "", match{&expr.Masq{}}) // the mark proves that the source is an address of a box
	for _, f := range network.Families {
		var elements []nftables.SetElement
		for _, a := range c.Sources {
			if network.FamilyOf(a) == f {
				elements = append(elements, nftables.SetElement{Key: a.AsSlice()})
			}
		}
		if len(elements) > 0 { // otherwise no plan has an address of the family
			t.rule(chainLeak, "source addresses that the host has lost", marked(network.MarkForward), notToBox(), ofFamily(f),
				match{addr(f, true, r1), lookup(t.anonymous(addrType(f), elements))}, sourceNotLocal(), counted(countAbsent), drop())
		}
	}
}

// writeLeave writes the chain of a version with source addresses that allowed packets take.
func (t *txn) writeLeave(d *draft) {
	chain := d.leaveChain()
	t.chain(chain)
	for _, a := range d.from.Addrs() {
		f := network.FamilyOf(a)
		t.rule(chain, "it leaves from the address that the plan says", ofFamily(f), lookupLeave(f), match{eq(a.AsSlice())}, jumpTo(chainPass))
	}
	t.rule(chain, "no address to leave from", refuse(name.ReasonSourceAddress))
}

// leaveChanges are elements to be removed from and added to the maps.
type leaveChanges struct {
	out, in map[network.Family][]nftables.SetElement
}

// apply adds the changes to a transaction.
func (l leaveChanges) apply(t *txn) {
	for _, f := range network.Families {
		t.deleteElements(leavesMap(f), l.out[f]...)
		t.addElements(leavesMap(f), l.in[f])
	}
}

// leaveChanges returns the changes that adapt the maps to the versions that boxes are switched to.
func (tbl *Table) leaveChanges(moves []move) (l leaveChanges, err error) {
	want := map[netip.Addr]netip.Addr{}
	for _, m := range moves {
		for _, a := range m.Sources {
			from, _ := m.to.from.For(a)
			want[a] = from
			tbl.leaving = tbl.leaving || from.IsValid()
		}
	}
	return tbl.leaveChangesTo(want)
}

// leaveChangesTo returns the changes after which the boxes' addresses have the wanted elements; the zero Addr means no element.
// It does not read the maps while no box has an element.
func (tbl *Table) leaveChangesTo(want map[netip.Addr]netip.Addr) (l leaveChanges, err error) {
	if !tbl.leaving {
		return l, nil
	}
	has, err := tbl.readLeaves()
	if err != nil {
		return l, err
	}
	l = leaveChanges{map[network.Family][]nftables.SetElement{}, map[network.Family][]nftables.SetElement{}}
	for a, from := range want {
		f := network.FamilyOf(a)
		if has[a] == from {
			continue
		}
		if has[a].IsValid() {
			l.out[f] = append(l.out[f], nftables.SetElement{Key: a.AsSlice()})
		}
		if from.IsValid() {
			l.in[f] = append(l.in[f], nftables.SetElement{Key: a.AsSlice(), Val: from.AsSlice()})
		}
	}
	maps.DeleteFunc(want, func(_, from netip.Addr) bool { return !from.IsValid() })
	tbl.leaving = len(has)+len(want) > 0
	return l, nil
}

// readLeaves returns the elements of the maps.
func (tbl *Table) readLeaves() (map[netip.Addr]netip.Addr, error) {
	c, err := tbl.forChanges()
	if err != nil {
		return nil, err
	}
	has := map[netip.Addr]netip.Addr{}
	for _, f := range network.Families {
		elements, err := c.GetSetElements(leavesMap(f))
		if err != nil {
			return nil, fmt.Errorf("nftables: %w", err)
		}
		for _, e := range elements {
			a, ok := netip.AddrFromSlice(e.Key)
			from, ok2 := netip.AddrFromSlice(e.Val)
			if ok && ok2 {
				has[a] = from
			}
		}
	}
	return has, nil
}
