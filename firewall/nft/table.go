package nft

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	"go.uber.org/zap"

	"boxgate/firewall/network"
)

// Config is what the rules depend on in addition to the boxes' plans.
type Config struct {
	network.Addresses
	DNSPort, ProxyPort, ExplicitPort uint16
	LogGroup                         uint16       // NFLOG group of the refusals
	FlowLimit                        uint32       // connections of one box at once
	SendRate                         uint64       // bytes a second that one box may send; 0: no limit
	Sources                          []netip.Addr // of the host, that plans may have boxes' connections leave from
	Log                              *zap.Logger
}

// Table is the table "inet boxgate" of one network namespace. Its methods are for one goroutine at a time, but for IsOwn.
type Table struct {
	conn
	cfg     Config
	serial  uint64             // the last one used by a version or by protected ranges
	shields map[string]*shield // the protected ranges that versions use, by their text
	garbage []*version         // no element points there; to be deleted

	versions map[digest]*version // those that boxes have, by their plans

	leaving bool // there may be elements in the maps of source addresses

	lastRanges []netip.Prefix // see text
	lastText   string
}

// New returns the table of the namespace, which stays the caller's. It is as it was until Install.
func New(ns netns.NsHandle, cfg Config) *Table {
	return &Table{conn: conn{ns: ns}, cfg: cfg, leaving: true, shields: map[string]*shield{}, versions: map[digest]*version{}}
}

// IsOwn reports whether a netlink port is one of our connections to nftables: what came from it is no other program's
// change. Safe for concurrent use.
func (tbl *Table) IsOwn(port uint32) bool { return tbl.isOwn(port) }

// Replaced is how many versions were replaced and could not be deleted yet.
func (tbl *Table) Replaced() int { return len(tbl.garbage) }

// Remove takes the table away.
func (tbl *Table) Remove() error {
	return tbl.transact(func(t *txn) {
		t.c.AddTable(t.table)
		t.c.DelTable(t.table)
	}, func(c *nftables.Conn) (bool, error) {
		_, err := c.ListTableOfFamily(network.TableName, nftables.TableFamilyINet)
		return err != nil, nil
	})
}

// Close gives the connections back. The table stays.
func (tbl *Table) Close() error {
	var err error
	if tbl.open != nil {
		err = tbl.open.CloseLasting()
	}
	if tbl.asks != nil {
		err = errors.Join(err, tbl.asks.Close())
	}
	return err
}

// layout changes whenever a hook, a set's type, a pool or the contents of a meter change: such a table is replaced, not
// updated.
func (c *Config) layout() string {
	return fmt.Sprintf("layout 6, pools %v %v, %d connections a box", c.PoolV4, c.PoolV6, c.FlowLimit)
}

// Install writes the static part in one transaction; no interval set belongs to it. A table of the same layout keeps its
// sets, maps and the boxes' chains: boxes stay as they were. Any other table is replaced, which leaves every box closed
// until it is added again.
func (tbl *Table) Install(keep bool) error {
	stamp := tbl.cfg.layout() + ", start " + strings.ToLower(rand.Text()[:10])
	err := tbl.transact(func(t *txn) {
		t.c.AddTable(t.table)
		if !keep {
			t.c.DelTable(t.table)
			t.c.AddTable(t.table)
		}
		s := t.declareSets()
		t.addElements(s.notes, []nftables.SetElement{{Key: ifname(notesKeeper)}})
		t.chain(chainAbout)
		t.declareCounters()
		t.declareChains()
		t.writeRefusals(tbl.cfg.LogGroup)
		t.writeGuard(&tbl.cfg, s)
		t.writeJudge(&tbl.cfg, s)
		t.writeTargets(&tbl.cfg, s)
		t.writeAdmission(&tbl.cfg, s)
		t.writeHooks(&tbl.cfg, s)
		t.rule(chainAbout, stamp, counter())
	}, func(c *nftables.Conn) (bool, error) { return stamped(c, chainAbout, stamp) })
	if err == nil && !keep {
		tbl.shields, tbl.versions, tbl.garbage = map[string]*shield{}, map[digest]*version{}, nil
	}
	return err
}
