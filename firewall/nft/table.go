package nft

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netns"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Config configures a Table.
type Config struct {
	network.Addresses
	DNSPort, ProxyPort, ExplicitPort uint16
	LogGroup                         uint16       // NFLOG group for refused packets
	FlowLimit                        uint32       // concurrent connections of one box
	OneList                          bool         // count the connections of a box in one list: the kernel lacks nft_numgen
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
	text := fmt.Sprintf("layout 7, pools %v %v, %d connections a box", c.PoolV4, c.PoolV6, c.FlowLimit)
	if c.OneList {
		text += " in one list"
	}
	return text
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

// txn collects changes of the table for one atomic transaction.
type txn struct {
	c      *nftables.Conn
	table  *nftables.Table
	nextID uint32
	errs   []error
}

func (t *txn) fail(err error) {
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

// rule appends a rule made of the pieces to the chain. nft shows the comment, which may have at most 128 bytes.
func (t *txn) rule(chain, comment string, pieces ...match) {
	var all []expr.Any
	for _, p := range pieces {
		all = append(all, p...)
	}
	r := &nftables.Rule{Table: t.table, Chain: &nftables.Chain{Name: chain, Table: t.table}, Exprs: all}
	if comment != "" {
		r.UserData = userdata.AppendString(nil, userdata.TypeComment, comment)
	}
	t.c.AddRule(r)
}

// chain creates the chain if it is missing, and empties it.
func (t *txn) chain(name string) {
	c := t.c.AddChain(&nftables.Chain{Name: name, Table: t.table})
	t.c.FlushChain(c)
}

// hook creates a base chain and empties it. Its policy is accept, because it also sees packets that are not from boxes.
func (t *txn) hook(name string, kind nftables.ChainType, num *nftables.ChainHook, priority nftables.ChainPriority) {
	policy := nftables.ChainPolicyAccept
	c := t.c.AddChain(&nftables.Chain{Name: name, Table: t.table, Type: kind, Hooknum: num, Priority: &priority,
		Policy: &policy})
	t.c.FlushChain(c)
}

// set creates a named set if it is missing.
func (t *txn) set(s *nftables.Set) *nftables.Set {
	t.nextID++
	s.ID, s.Table = t.nextID, t.table
	t.fail(t.c.AddSet(s, nil))
	return s
}

// anonymous creates a constant set that belongs to one rule.
func (t *txn) anonymous(key nftables.SetDatatype, elements []nftables.SetElement) *nftables.Set {
	t.nextID++
	s := &nftables.Set{Table: t.table, ID: t.nextID, Name: "__set%d", Anonymous: true, Constant: true, KeyType: key}
	t.fail(t.c.AddSet(s, elements))
	return s
}

// elementsPerMessage keeps a message far below 64 KiB, where the length of a netlink attribute overflows and elements are
// silently lost.
const elementsPerMessage = 400

func (t *txn) addElements(s *nftables.Set, elements []nftables.SetElement) {
	for len(elements) > 0 {
		n := min(len(elements), elementsPerMessage)
		t.fail(t.c.SetAddElements(s, elements[:n]))
		elements = elements[n:]
	}
}

func (t *txn) deleteElements(s *nftables.Set, elements ...nftables.SetElement) {
	if len(elements) > 0 {
		t.fail(t.c.SetDeleteElements(s, elements))
	}
}

// digest identifies a plan by everything that the table contains of it; the version of the policy is left out.
type digest [sha256.Size]byte

// digest returns the digest of a plan.
func (tbl *Table) digest(p policy.KernelPlan) digest {
	b := make([]byte, 0, 1024)
	for _, list := range [][]netip.Prefix{p.Allowed, p.Denied, p.Cluster} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
		for _, prefix := range list {
			a := prefix.Addr().As16()
			b = append(append(b, a[:]...), byte(prefix.Addr().BitLen()), byte(prefix.Bits()))
		}
	}
	for _, ports := range []name.PortSet{p.SteerAllowed, p.SteerOther, p.RejectUDP, p.RejectOther} {
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

// Read finds the boxes that an earlier run left, by interface, and reports whether the existing table can be kept.
func (tbl *Table) Read() (left map[string]Entry, keep bool, err error) {
	left = map[string]Entry{}
	c, err := tbl.forChanges()
	if err != nil {
		return left, false, err
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return left, false, fmt.Errorf("nftables: %w", err)
	}
	for _, t := range tables {
		if t.Name == network.TableName {
			keep, err = tbl.readBoxes(c, left)
			return left, keep, err
		}
	}
	return left, false, nil
}

// readBoxes reads the boxes that an earlier run left in a table, and reports whether its layout is ours. The versions that
// the boxes' elements point to are active; other versions are from a run that died between writing and deleting one.
func (tbl *Table) readBoxes(c *nftables.Conn, left map[string]Entry) (bool, error) {
	rules, err := c.GetRules(table(), &nftables.Chain{Name: chainAbout, Table: table()})
	if err != nil || len(rules) == 0 {
		return false, nil // not our table, or incomplete: it is replaced by a closed one
	}
	stamp, _ := userdata.GetString(rules[0].UserData, userdata.TypeComment)
	if want := tbl.cfg.layout() + ", start"; len(stamp) < len(want) || stamp[:len(want)] != want {
		return false, nil
	}
	versions, sends, err := tbl.readVersions(c)
	if err != nil {
		return false, err
	}
	targets, err := readTargets(c, boxesMap())
	if err != nil {
		return false, err
	}
	for link, chain := range targets {
		v := versions[chain]
		if v == nil && chain != chainClosed {
			return false, nil // not written by us
		}
		if v == nil {
			v = closedVersion()
		}
		left[link] = Entry{Link: link, live: v, hasSendChain: sends[link]}
		v.users++
	}
	for _, v := range versions {
		if v.users == 0 {
			tbl.garbage = append(tbl.garbage, v)
		}
	}
	return true, readRegistrations(c, left)
}

// readVersions returns the versions in the table by chain. Protected ranges without a version get one without a chain.
// sends contains the interfaces that have a chain limiting their send rate.
func (tbl *Table) readVersions(c *nftables.Conn) (versions map[string]*version, sends map[string]bool, err error) {
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, nil, fmt.Errorf("nftables: %w", err)
	}
	sets, err := c.GetSets(table())
	if err != nil {
		return nil, nil, fmt.Errorf("nftables: %w", err)
	}
	versions, sends = map[string]*version{}, map[string]bool{}
	shields := map[uint64]*shield{}
	for _, s := range sets {
		serial, found := strings.CutPrefix(strings.TrimSuffix(s.Name, "_v"+suffix(network.V4)), shieldPrefix)
		if n, err := strconv.ParseUint(serial, 10, 64); found && err == nil {
			shields[n] = &shield{serial: n}
			tbl.serial = max(tbl.serial, n)
		}
	}
	for _, ch := range chains {
		sends[sendLink(ch.Name)] = true
		own, n, ok := serialsOf(ch.Name)
		if !ok || ch.Table.Name != network.TableName {
			continue
		}
		if shields[n] == nil {
			shields[n] = &shield{serial: n}
		}
		shields[n].users++
		versions[ch.Name] = &version{chain: ch.Name, shield: shields[n]}
		tbl.serial = max(tbl.serial, own)
	}
	for _, ch := range chains {
		if v := versions[strings.TrimSuffix(ch.Name, leaveSuffix)]; v != nil && v.chain != ch.Name {
			v.sourced = true
		}
	}
	for _, s := range sets {
		if i := strings.LastIndexByte(s.Name, '_'); i > 0 && versions[s.Name[:i]] != nil {
			v := versions[s.Name[:i]]
			v.sets = append(v.sets, s.Name)
		}
	}
	for n, s := range shields {
		if s.users == 0 {
			s.users = 1
			versions[shieldPrefix+strconv.FormatUint(n, 10)] = &version{shield: s}
		}
	}
	return versions, sends, nil
}

// readRegistrations adds to each leftover its connection mark and its source addresses.
func readRegistrations(c *nftables.Conn, left map[string]Entry) error {
	marks, err := c.GetSetElements(&nftables.Set{Table: table(), Name: "marks"})
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, e := range marks {
		if r, known := left[linkOfKey(e.Key)]; known && len(e.Val) == 4 {
			r.Mark = readNative32(e.Val)
			left[r.Link] = r
		}
	}
	for _, fam := range network.Families {
		elements, err := c.GetSetElements(&nftables.Set{Table: table(), Name: "sources" + suffix(fam)})
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		for _, e := range elements {
			r, known := left[linkOfKey(e.Key)]
			if len(e.Key) <= unix.IFNAMSIZ || !known {
				continue
			}
			if a, ok := netip.AddrFromSlice(e.Key[unix.IFNAMSIZ:]); ok {
				r.Sources = append(r.Sources, a)
				left[r.Link] = r
			}
		}
	}
	return nil
}
