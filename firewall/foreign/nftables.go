// Package foreign finds chains of other programs, in nftables and in iptables-legacy, that drop packets of boxes, and the
// command for the program that allows them.
package foreign

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"

	"boxgate/firewall/network"
)

// Check returns an error for every program whose chains drop packets of boxes, with the command that allows them: in
// netfilter every chain must accept a packet. It follows the rules for a packet of each kind, so it sees policies, final
// rules that reject everything, and exceptions for boxes. A rule whose condition cannot be evaluated counts as not
// matching. Check examines the network namespace of the calling thread and needs CAP_NET_ADMIN. It sees nftables,
// including the iptables based on it, and iptables-legacy.
func Check() error {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()
	chains, err := c.ListChains()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	drops, err := nftablesDrops(c, chains)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	legacy, err := legacyDrops()
	return errors.Join(append(describe(append(drops, legacy...)), err)...)
}

// drop is a chain that drops packets of boxes.
type drop struct {
	program *program
	tool    string // iptables or ip6tables, perhaps with -legacy; empty: nftables
	family  string // of the table
	table   string
	chain   string
	kinds   []kind
}

var ipFamilies = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
}

// nftablesDrops returns the chains of all tables but boxgate's that drop packets of boxes.
func nftablesDrops(c *nftables.Conn, chains []*nftables.Chain) ([]drop, error) {
	var found []drop
	loaded := map[string]*ruleset{}
	for _, ch := range chains {
		family, ip := ipFamilies[ch.Table.Family]
		ours := family == "inet" && ch.Table.Name == network.TableName
		if !ip || ours || ch.Hooknum == nil || ch.Type != nftables.ChainTypeFilter {
			continue
		}
		key := family + " " + ch.Table.Name
		if loaded[key] == nil {
			r, err := loadTable(c, ch.Table, chains)
			if err != nil {
				return nil, err
			}
			loaded[key] = r
		}
		if kinds := loaded[key].drops(ch); len(kinds) > 0 {
			d := drop{program: programOf(ch, loaded[key]), family: family, table: ch.Table.Name, chain: ch.Name, kinds: kinds}
			if iptablesChain(ch, family) {
				d.tool = map[string]string{"ip": "iptables", "ip6": "ip6tables"}[family]
			}
			found = append(found, d)
		}
	}
	return found, nil
}

// loadTable reads the rules of a table. Elements of sets are read when a rule needs them.
func loadTable(c *nftables.Conn, table *nftables.Table, chains []*nftables.Chain) (*ruleset, error) {
	r := &ruleset{conn: c, table: table, chains: map[string][]*nftables.Rule{}, sets: map[string][]nftables.SetElement{}}
	for _, ch := range chains {
		if ch.Table.Name != table.Name || ch.Table.Family != table.Family {
			continue
		}
		rules, err := c.GetRules(table, ch)
		if err != nil {
			return nil, err
		}
		r.chains[ch.Name] = rules
	}
	return r, nil
}

// drops returns the kinds of packets that a base chain drops.
func (r *ruleset) drops(ch *nftables.Chain) []kind {
	var found []kind
	for _, p := range packetsOf(*ch.Hooknum, ch.Table.Family) {
		verdict := r.run(ch.Name, p, 0)
		if verdict == goesOn && ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop {
			verdict = drops
		}
		if verdict == drops && !slices.Contains(found, p.kind) {
			found = append(found, p.kind)
		}
	}
	slices.SortFunc(found, func(a, b kind) int { return cmp.Compare(a, b) })
	return found
}
