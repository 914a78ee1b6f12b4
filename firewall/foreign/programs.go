package foreign

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"boxgate/firewall/network"
)

// program is a program with rules of its own, known by the name of a table or chain.
type program struct {
	name   string
	remedy func(all []drop) string
}

var (
	firewalld = &program{"firewalld", firewalldRemedy}
	ufw       = &program{"ufw", ufwRemedy}
	docker    = &program{"Docker", func(all []drop) string { return iptablesRemedy(all, "DOCKER-USER") }}
)

// programOf returns the program that wrote a chain, nil if it is unknown.
func programOf(ch *nftables.Chain, r *ruleset) *program {
	if ch.Table.Name == "firewalld" {
		return firewalld
	}
	return programOfChain(*ch.Hooknum == *nftables.ChainHookForward, func(name string) bool {
		_, ok := r.chains[name]
		return ok
	})
}

// programOfChain returns the program that sets the policy of a chain of iptables, by the other chains of its table: with
// both, ufw decides after Docker.
func programOfChain(forward bool, has func(chain string) bool) *program {
	switch {
	case has("ufw-before-input") || has("ufw6-before-input"):
		return ufw
	case forward && has("DOCKER-USER"):
		return docker
	}
	return nil
}

// iptablesChain reports whether a chain is one of iptables.
func iptablesChain(ch *nftables.Chain, family string) bool {
	return ch.Table.Name == "filter" && family != "inet" && ch.Name == strings.ToUpper(ch.Name)
}

// describe returns an error for each program, and one for each chain of an unknown program.
func describe(all []drop) []error {
	var errs []error
	for _, p := range []*program{firewalld, ufw, docker} {
		var own []drop
		for _, d := range all {
			if d.program == p {
				own = append(own, d)
			}
		}
		if len(own) > 0 {
			errs = append(errs, fmt.Errorf("%s drops %s; allow it with: %s", p.name, packetsText(own), p.remedy(own)))
		}
	}
	for _, d := range all {
		if d.program == nil {
			errs = append(errs, d.describe())
		}
	}
	return errs
}

// describe describes a chain of an unknown program.
func (d drop) describe() error {
	one := []drop{d}
	where := fmt.Sprintf("the table %s %s", d.family, d.table)
	if d.table == "" {
		where = d.tool
	}
	remedy := nftRemedy(d)
	if d.tool != "" {
		remedy = iptablesRemedy(one, d.chain)
	}
	return fmt.Errorf("the chain %s of %s drops %s; allow it with: %s", d.chain, where, packetsText(one), remedy)
}

func hasKind(all []drop, kinds ...kind) bool {
	return slices.ContainsFunc(all, func(d drop) bool {
		return slices.ContainsFunc(d.kinds, func(k kind) bool { return slices.Contains(kinds, k) })
	})
}

// packetsText names the dropped packets.
func packetsText(all []drop) string {
	var parts []string
	if hasKind(all, toGateway) {
		parts = append(parts, "DNS queries and proxied connections of boxes")
	}
	switch {
	case hasKind(all, forwarded):
		parts = append(parts, "what the kernel forwards for boxes")
	case hasKind(all, replies):
		parts = append(parts, "replies to what the kernel forwards for boxes")
	}
	return strings.Join(parts, ", and ")
}

// firewalldRemedy puts the boxes into the zone that accepts everything: boxgate's own rules judge them.
func firewalldRemedy([]drop) string {
	return fmt.Sprintf("firewall-cmd --permanent --zone=trusted --add-interface=%s+ && firewall-cmd --reload", network.LinkPrefix)
}

// ufwRemedy accepts boxes before ufw-not-local, which drops connections to the proxy: they keep their destination. `ufw
// allow` adds rules only after it.
func ufwRemedy([]drop) string {
	const step = `sed -i '/^# End required lines/a -A %s-before-input -i %s+ -j ACCEPT\n-A %s-before-forward -i %s+ -j ACCEPT' /etc/ufw/%s`
	p := network.LinkPrefix
	return fmt.Sprintf(step, "ufw", p, "ufw", p, "before.rules") + " && " +
		fmt.Sprintf(step, "ufw6", p, "ufw6", p, "before6.rules") + " && ufw reload"
}

// iptablesRemedy accepts packets from and to boxes in a chain.
func iptablesRemedy(all []drop, chain string) string {
	var steps []string
	for _, d := range all {
		steps = append(steps, fmt.Sprintf("%s -I %s -i %s+ -j ACCEPT", d.tool, chain, network.LinkPrefix))
		if hasKind(all, forwarded, replies) {
			steps = append(steps, fmt.Sprintf("%s -I %s -o %s+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", d.tool, chain,
				network.LinkPrefix))
		}
	}
	return strings.Join(steps, "; ")
}

func nftRemedy(d drop) string {
	rule := fmt.Sprintf("nft insert rule %s %s %s", d.family, d.table, d.chain)
	remedy := fmt.Sprintf("%s iifgroup %d accept", rule, network.LinkGroup)
	if hasKind([]drop{d}, forwarded, replies) {
		remedy += fmt.Sprintf("; %s oifgroup %d ct state established,related accept", rule, network.LinkGroup)
	}
	return remedy
}
