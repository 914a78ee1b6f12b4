package flow

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netns"

	"boxgate/firewall/network"
	"boxgate/policy"
)

// Flow is one connection that the kernel forwards for a box, as the box sees it.
type Flow struct {
	Protocol policy.Protocol // empty for one that boxes may not use
	Src, Dst netip.AddrPort  // ports are 0 for ICMP
	From     netip.Addr      // what its packets leave the host from
}

// Cutter ends connections of boxes in one network namespace. Safe for concurrent use.
type Cutter struct {
	cuts  *Table
	looks *Table // a look at all connections takes time in proportion to their number: no cut waits for it
}

// New returns one for the namespace, which stays the caller's.
func New(ns netns.NsHandle) *Cutter { return &Cutter{NewTable(ns), NewTable(ns)} }

// Owner is whose connection it is: boxes may share a mark.
type Owner struct {
	Mark uint32     // without network.FlowForwarded
	Addr netip.Addr // its source
}

// Owner returns whose connection the entry is.
func (e *Entry) Owner() Owner { return Owner{e.Mark &^ network.FlowForwarded, e.Src.Addr()} }

// forwarded are the connections that the kernel forwards for boxes.
var forwarded = Which{Mark: network.FlowForwarded, Mask: network.FlowForwarded}

// Cut ends the connections with the mark that the kernel forwards from one of the sources and that keep does not want. It
// returns how many it kept.
func (k *Cutter) Cut(mark uint32, sources []netip.Addr, keep func(Flow) bool) (kept int, err error) {
	err = k.cuts.Remove(Which{Mark: mark | network.FlowForwarded, Mask: ^uint32(0)}, func(e *Entry) bool {
		if !slices.Contains(sources, e.Src.Addr()) { // another box may have the same mark
			return false
		}
		if e.Protocol == "" || keep(e.Flow) {
			kept++
			return false
		}
		return true
	})
	return kept, err
}

// CutAll ends the connections that the kernel forwards for any box and that keep does not want.
func (k *Cutter) CutAll(keep func(Owner, Flow) bool) error {
	return k.cuts.Remove(forwarded, func(e *Entry) bool { return e.Protocol != "" && !keep(e.Owner(), e.Flow) })
}

// CutLookups ends the lookups of names from the pools that lead to another port of the gateway than this one: the connection table keeps
// for up to minutes where a client's port led to. Other programs mark connections, too: theirs are none of the pools.
func (k *Cutter) CutLookups(pools []netip.Prefix, port uint16) error {
	toGateway := Which{Mark: network.MarkedBox, Mask: network.MarkedBox | network.FlowForwarded}
	return k.cuts.Remove(toGateway, func(e *Entry) bool {
		ofBox := slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Contains(e.Src.Addr()) })
		return ofBox && e.Dst.Port() == dnsPort && e.leads != port
	})
}

// Owners returns whose connections the kernel forwards at present.
func (k *Cutter) Owners() (map[Owner]bool, error) {
	owners := map[Owner]bool{}
	err := k.looks.Each(forwarded, func(e *Entry) { owners[e.Owner()] = true })
	return owners, err
}

// Close gives the connections to the kernel back.
func (k *Cutter) Close() error { return errors.Join(k.cuts.Close(), k.looks.Close()) }
