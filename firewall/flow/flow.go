// Package flow reads and cuts the connections that the kernel forwards for boxes, through the kernel's connection table.
package flow

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netns"

	"boxgate/firewall/network"
	"boxgate/policy"
)

// Flow is one connection that the kernel forwards for a box, as seen by the box.
type Flow struct {
	Protocol policy.Protocol // empty for a protocol that boxes may not use
	Src, Dst netip.AddrPort  // ports are 0 for ICMP
	From     netip.Addr      // source address of its packets when they leave the host
}

// Cutter cuts connections of boxes in one network namespace. Safe for concurrent use.
type Cutter struct {
	removals *Table
	scans    *Table // for reads of the whole table, whose time grows with its size: cuts do not wait for them
}

// New returns a Cutter for the namespace, which remains owned by the caller.
func New(ns netns.NsHandle) *Cutter { return &Cutter{NewTable(ns), NewTable(ns)} }

// Owner identifies the box of a connection. The mark is not enough: boxes may share one.
type Owner struct {
	Mark uint32     // without network.FlowForwarded
	Addr netip.Addr // source address
}

// Owner returns the owner of the connection.
func (e *Entry) Owner() Owner { return Owner{e.Mark &^ network.FlowForwarded, e.Src.Addr()} }

// forwarded selects the connections that the kernel forwards for boxes.
var forwarded = Filter{Mark: network.FlowForwarded, Mask: network.FlowForwarded}

// Cut cuts the forwarded connections with the mark and one of the sources for which keep returns false. It returns how many
// it kept.
func (k *Cutter) Cut(mark uint32, sources []netip.Addr, keep func(Flow) bool) (kept int, err error) {
	err = k.removals.Remove(Filter{Mark: mark | network.FlowForwarded, Mask: ^uint32(0)}, func(e *Entry) bool {
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

// CutAll cuts the forwarded connections of all boxes for which keep returns false.
func (k *Cutter) CutAll(keep func(Owner, Flow) bool) error {
	return k.removals.Remove(forwarded, func(e *Entry) bool { return e.Protocol != "" && !keep(e.Owner(), e.Flow) })
}

// CutLookups cuts DNS lookups from the pools to another port of the gateway than the given one: the connection table keeps
// the redirection of a client's port for up to minutes. Other programs may use the same mark bits, but not addresses of the
// pools.
func (k *Cutter) CutLookups(pools []netip.Prefix, port uint16) error {
	toGateway := Filter{Mark: network.MarkedBox, Mask: network.MarkedBox | network.FlowForwarded}
	return k.removals.Remove(toGateway, func(e *Entry) bool {
		ofBox := slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Contains(e.Src.Addr()) })
		return ofBox && e.Dst.Port() == dnsPort && e.answerPort != port
	})
}

// Owners returns the owners of all forwarded connections.
func (k *Cutter) Owners() (map[Owner]bool, error) {
	owners := map[Owner]bool{}
	err := k.scans.Each(forwarded, func(e *Entry) { owners[e.Owner()] = true })
	return owners, err
}

// Close closes the connections to the kernel.
func (k *Cutter) Close() error { return errors.Join(k.removals.Close(), k.scans.Close()) }

const (
	dnsPort     = 53 // queries are not counted as traffic
	established = 3  // TCP_CONNTRACK_ESTABLISHED

	// Header bytes of a TCP segment without payload, with timestamps, for IPv4 and IPv6.
	bare4, bare6 = 52, 72
)

// Traffic counts the traffic of a connection.
type Traffic struct {
	Bytes     int64 // approximate payload bytes, both directions
	Forwarded bool  // by the kernel; false: to the gateway
}

// Traffic calls each for the open connections in the table, with their traffic. Keep-alive segments do not count. DNS is
// left out.
func (k *Cutter) Traffic(each func(Flow, Traffic)) error {
	return k.scans.Each(Filter{}, func(e *Entry) {
		if e.Protocol == "" || e.Dst.Port() == dnsPort || e.Protocol == policy.TCP && e.state != established {
			return
		}
		each(e.Flow, Traffic{Bytes: e.content(e.Orig) + e.content(e.Reply), Forwarded: e.Mark&network.FlowForwarded != 0})
	})
}

// content returns the approximate payload bytes in one direction, without acknowledgements of the other.
func (e *Entry) content(n Counter) int64 {
	bare := int64(0)
	if e.Protocol == policy.TCP {
		if bare = bare4; e.Dst.Addr().Is6() {
			bare = bare6
		}
	}
	return int64(n.Bytes) - bare*int64(n.Packets)
}
