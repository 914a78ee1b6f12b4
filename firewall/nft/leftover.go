package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

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
	if want := tbl.cfg.layout(); len(stamp) < len(want) || stamp[:len(want)] != want {
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
