package nft

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"boxgate/firewall/network"
	"boxgate/policy/name"
)

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
