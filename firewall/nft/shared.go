package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"boxgate/policy"
	"boxgate/policy/name"
)

// digest identifies a plan by everything that the table contains of it; the version of the policy is left out.
type digest [sha256.Size]byte

// digest returns the digest of a plan.
func (tbl *Table) digest(p policy.KernelPlan) digest {
	b := make([]byte, 0, 1024)
	for _, list := range [][]netip.Prefix{p.Allowed, p.Denied} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
		for _, prefix := range list {
			a := prefix.Addr().As16()
			b = append(append(b, a[:]...), byte(prefix.Addr().BitLen()), byte(prefix.Bits()))
		}
	}
	for _, ports := range []name.PortSet{p.SteerAllowed, p.SteerOther, p.RejectUDP} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(ports.Ports))), flag(ports.All))
		for _, port := range ports.Ports {
			b = binary.BigEndian.AppendUint16(b, port)
		}
	}
	b = append(b, flag(p.DefaultAllow), flag(p.Sourced))
	for _, a := range []netip.Addr{p.Source.V4, p.Source.V6} {
		b = append(b, flag(a.IsValid()))
		b = append(b, a.AsSlice()...)
	}
	return sha256.Sum256(append(b, tbl.rangesText(p.Protected)...))
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// rangesText returns the ranges as text. It caches the last result, because they rarely change.
func (tbl *Table) rangesText(ranges []netip.Prefix) string {
	if tbl.lastText == "" || !slices.Equal(tbl.lastRanges, ranges) {
		tbl.lastRanges, tbl.lastText = slices.Clone(ranges), fmt.Sprint(ranges)
	}
	return tbl.lastText
}

// setLive records the version that the box's element points to.
func (tbl *Table) setLive(e *Entry, v *version) {
	if e.live != v {
		tbl.addUser(v)
		tbl.removeUser(e.live)
	}
	e.live, e.liveUnknown = v, false
}

// addUser counts one more element that points to the version. From now on other boxes can share it: it is complete, and stays
// as long as a box uses it.
func (tbl *Table) addUser(v *version) {
	if v == nil || v.chain == chainClosed {
		return
	}
	if v.users++; v.users > 1 {
		return
	}
	tbl.garbage = slices.DeleteFunc(tbl.garbage, func(g *version) bool { return g == v })
	if v.plan != (digest{}) && tbl.versions[v.plan] == nil {
		tbl.versions[v.plan] = v
	}
}

// removeUser counts one element less that points to the version. After the last one it becomes garbage.
func (tbl *Table) removeUser(v *version) {
	if v == nil || v.chain == chainClosed {
		return
	}
	if v.users = max(0, v.users-1); v.users > 0 {
		return
	}
	if tbl.versions[v.plan] == v {
		delete(tbl.versions, v.plan)
	}
	if !slices.Contains(tbl.garbage, v) {
		tbl.garbage = append(tbl.garbage, v)
	}
}
