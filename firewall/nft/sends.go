package nft

import (
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"boxgate/policy"
)

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
