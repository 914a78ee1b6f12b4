package foreign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"boxgate/firewall/network"
)

// Check returns an error for every chain of another program that drops packets of boxes, with the rule that would allow
// them: in netfilter every chain must accept a packet. Such a chain has the policy drop and no rule that accepts the boxes'
// interfaces. Check examines the network namespace of the calling thread and needs CAP_NET_ADMIN. It sees nftables,
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
	var errs []error
	for _, ch := range chains {
		if dropsBoxes(ch) && !acceptsBoxes(c, chains, ch.Table) {
			errs = append(errs, describeDrop(ch))
		}
	}
	return errors.Join(append(errs, checkLegacy())...)
}

var ipFamilies = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
}

// dropsBoxes reports whether a chain sees packets of boxes and drops them unless one of its rules accepts them.
func dropsBoxes(ch *nftables.Chain) bool {
	family, ip := ipFamilies[ch.Table.Family]
	ours := family == "inet" && ch.Table.Name == network.TableName
	return ip && !ours && ch.Hooknum != nil && ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop &&
		(*ch.Hooknum == *nftables.ChainHookForward || *ch.Hooknum == *nftables.ChainHookInput)
}

// acceptsBoxes reports whether any chain of the table accepts packets from the boxes' interfaces.
func acceptsBoxes(c *nftables.Conn, chains []*nftables.Chain, table *nftables.Table) bool {
	return slices.ContainsFunc(chains, func(ch *nftables.Chain) bool {
		if ch.Table.Name != table.Name || ch.Table.Family != table.Family {
			return false
		}
		rules, err := c.GetRules(ch.Table, ch)
		return err == nil && slices.ContainsFunc(rules, isForBoxes)
	})
}

// isForBoxes reports whether a rule accepts packets from interfaces of boxes, by group or name.
func isForBoxes(r *nftables.Rule) bool {
	var key expr.MetaKey
	matches, accepts := false, false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Meta:
			key = e.Key
		case *expr.Cmp:
			name := bytes.TrimRight(e.Data, "\x00")
			matches = matches || e.Op == expr.CmpOpEq && (key == expr.MetaKeyIIFNAME && string(name) == network.LinkPrefix ||
				key == expr.MetaKeyIIFGROUP && bytes.Equal(e.Data, binary.NativeEndian.AppendUint32(nil, network.LinkGroup)))
		case *expr.Verdict:
			accepts = accepts || e.Kind == expr.VerdictAccept
		}
	}
	return matches && accepts
}

func describeDrop(ch *nftables.Chain) error {
	family := ipFamilies[ch.Table.Family]
	what, forward := "DNS queries and proxied connections of boxes", *ch.Hooknum == *nftables.ChainHookForward
	if forward {
		what = "what the kernel forwards for boxes"
	}
	var remedy []string
	if ch.Table.Name == "filter" && family != "inet" && ch.Name == strings.ToUpper(ch.Name) { // of iptables
		tool := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[family]
		remedy = append(remedy, fmt.Sprintf("%s -I %s -i %s+ -j ACCEPT", tool, ch.Name, network.LinkPrefix))
		if forward {
			remedy = append(remedy, fmt.Sprintf("%s -I %s -o %s+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", tool,
				ch.Name, network.LinkPrefix))
		}
	} else {
		rule := fmt.Sprintf("nft insert rule %s %s %s", family, ch.Table.Name, ch.Name)
		remedy = append(remedy, fmt.Sprintf("%s iifgroup %d accept", rule, network.LinkGroup))
		if forward {
			remedy = append(remedy, fmt.Sprintf("%s oifgroup %d ct state established,related accept", rule, network.LinkGroup))
		}
	}
	return fmt.Errorf("the chain %s of the table %s %s drops %s; allow it with: %s", ch.Name, family, ch.Table.Name, what,
		strings.Join(remedy, "; "))
}
