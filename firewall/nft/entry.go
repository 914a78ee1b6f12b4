package nft

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/policy"
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
