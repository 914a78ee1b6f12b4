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

// Config configures a Table.
type Config struct {
	network.Addresses
	DNSPort, ProxyPort, ExplicitPort uint16
	LogGroup                         uint16       // NFLOG group for refused packets
	FlowLimit                        uint32       // concurrent connections of one box
	SendRate                         uint64       // bytes per second that one box may send; 0: no limit
	Sources                          []netip.Addr // host addresses that plans may use as the source of boxes' connections
	Log                              *zap.Logger
}

// Table is the table "inet boxgate" of one network namespace. Its methods are not safe for concurrent use, except IsOwn.
type Table struct {
	conn
	cfg     Config
	serial  uint64             // the last one used by a version or by protected ranges
	shields map[string]*shield // the protected ranges that versions use, by their text
	garbage []*version         // versions without an element, to be deleted

	versions map[digest]*version // versions in use by boxes, by plan

	leaving bool // there may be elements in the maps of source addresses

	lastRanges []netip.Prefix // see rangesText
	lastText   string
}

// New returns the table of the namespace, which remains owned by the caller. It does not change the table; Install does.
func New(ns netns.NsHandle, cfg Config) *Table {
	return &Table{conn: conn{ns: ns}, cfg: cfg, leaving: true, shields: map[string]*shield{}, versions: map[digest]*version{}}
}

// IsOwn reports whether a netlink port is one of our connections to nftables, so that its changes are not another
// program's. Safe for concurrent use.
func (tbl *Table) IsOwn(port uint32) bool { return tbl.isOwn(port) }

// GarbageCount returns how many replaced versions could not be deleted yet.
func (tbl *Table) GarbageCount() int { return len(tbl.garbage) }

// Remove deletes the table.
func (tbl *Table) Remove() error {
	return tbl.transact(func(t *txn) {
		t.c.AddTable(t.table)
		t.c.DelTable(t.table)
	}, func(c *nftables.Conn) (bool, error) {
		_, err := c.ListTableOfFamily(network.TableName, nftables.TableFamilyINet)
		return err != nil, nil
	})
}

// Close closes the connections. The table stays.
func (tbl *Table) Close() error {
	var err error
	if tbl.changes != nil {
		err = tbl.changes.CloseLasting()
	}
	if tbl.queries != nil {
		err = errors.Join(err, tbl.queries.Close())
	}
	return err
}

// layout changes whenever a hook, a set's type, a pool or the contents of a meter change. A table with another layout is
// replaced, not updated.
func (c *Config) layout() string {
	return fmt.Sprintf("layout 6, pools %v %v, %d connections a box", c.PoolV4, c.PoolV6, c.FlowLimit)
}

// Install writes the static part in one transaction; it contains no interval set. A table of the same layout keeps its
// sets, maps and the boxes' chains, so boxes are unaffected. Any other table is replaced, and every box is closed until it
// is added again.
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
