package firewall

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// readBoxes learns what an earlier run left in a table, and reports whether its layout is ours. Where each box's element
// leads is in force; other versions are those of a run that died between writing and deleting one.
func (f *Firewall) readBoxes(c *nftables.Conn) (bool, error) {
	rules, err := c.GetRules(table(), &nftables.Chain{Name: chainAbout, Table: table()})
	if err != nil || len(rules) == 0 {
		return false, nil //nolint:nilerr // not a table of ours, or half a one: it is replaced by a closed one
	}
	stamp, _ := userdata.GetString(rules[0].UserData, userdata.TypeComment)
	if want := f.cfg.layout(); len(stamp) < len(want) || stamp[:len(want)] != want {
		return false, nil
	}
	versions, err := f.readVersions(c)
	if err != nil {
		return false, err
	}
	targets, err := readTargets(c)
	if err != nil {
		return false, err
	}
	for link, chain := range targets {
		v := versions[chain]
		if v == nil && chain != chainClosed {
			return false, nil // not written by us
		}
		if v == nil {
			v = closed()
		}
		f.leftover[link] = registration{link: link, live: v}
		delete(versions, chain)
	}
	for _, v := range versions {
		f.garbage = append(f.garbage, v)
	}
	return true, f.readRegistrations(c)
}

// readVersions returns the versions in the table by their chains. Protected ranges without any get one without a chain.
func (f *Firewall) readVersions(c *nftables.Conn) (map[string]*version, error) {
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	sets, err := c.GetSets(table())
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	versions, shields := map[string]*version{}, map[uint64]*shield{}
	for _, s := range sets {
		serial, found := strings.CutPrefix(strings.TrimSuffix(s.Name, "_v"+v4.suffix()), shieldPrefix)
		if n, err := strconv.ParseUint(serial, 10, 64); found && err == nil {
			shields[n] = &shield{serial: n}
			f.serial = max(f.serial, n)
		}
	}
	for _, ch := range chains {
		own, n, ok := serialsOf(ch.Name)
		if !ok || ch.Table.Name != tableName {
			continue
		}
		if shields[n] == nil {
			shields[n] = &shield{serial: n}
		}
		shields[n].users++
		versions[ch.Name] = &version{chain: ch.Name, shield: shields[n]}
		f.serial = max(f.serial, own)
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
	return versions, nil
}

// readTargets returns the chain that each interface's element leads to.
func readTargets(c *nftables.Conn) (map[string]string, error) {
	elements, err := c.GetSetElements(boxesMap())
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

// linkOfKey reads the interface name that a key is, or begins with.
func linkOfKey(key []byte) string {
	return string(bytes.TrimRight(key[:min(len(key), unix.IFNAMSIZ)], "\x00"))
}

// readRegistrations adds to each leftover its connection mark and the source addresses it may use.
func (f *Firewall) readRegistrations(c *nftables.Conn) error {
	marks, err := c.GetSetElements(&nftables.Set{Table: table(), Name: "marks"})
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, e := range marks {
		if r, known := f.leftover[linkOfKey(e.Key)]; known && len(e.Val) == 4 {
			r.mark = readNative32(e.Val)
			f.leftover[r.link] = r
		}
	}
	for _, fam := range families {
		elements, err := c.GetSetElements(&nftables.Set{Table: table(), Name: "sources" + fam.suffix()})
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		for _, e := range elements {
			r, known := f.leftover[linkOfKey(e.Key)]
			if len(e.Key) <= unix.IFNAMSIZ || !known {
				continue
			}
			if a, ok := addrOf(e.Key[unix.IFNAMSIZ:]); ok {
				r.sources = append(r.sources, a)
				f.leftover[r.link] = r
			}
		}
	}
	return nil
}
