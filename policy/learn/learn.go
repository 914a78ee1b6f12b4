// Package learn proposes the least policy for traffic that was seen, with the evidence for each entry.
//
// Code in a box chooses its traffic, so a proposal is for a person to read. It never contains more than [MaxEntries] names, and it leaves
// out entries that are easily misused: addresses, names that imitate others, and background telemetry. These are listed apart.
package learn

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Bounds of a proposal. Beyond them, entries are counted. Those that were seen first take precedence, so that a flood of names cannot
// displace the names that a workload used before.
const (
	MaxEntries = 256 // of allowed_domains
	MaxApart   = 128 // entries that are left out and listed
	maxNames   = 8   // names listed as evidence for a wildcard
)

// Destination is a name or an address with a port.
type Destination struct {
	Name     string     // in canonical form; "": only the address is known
	Addr     netip.Addr // without a name
	Port     uint16     // 0: not known
	Protocol policy.Protocol
}

// entry formats a named destination as an entry of allowed_domains.
func (d Destination) entry() string { return net.JoinHostPort(d.Name, strconv.Itoa(int(d.Port))) }

// Exact returns the policy that allows exactly the destinations: each name with its port, 443 if it is not known and the name has no other.
// Addresses are allowed on every port, as policies have no ports for them.
func Exact(all []Destination) policy.Spec {
	named := map[string]bool{} // names with a port
	for _, d := range all {
		named[d.Name] = named[d.Name] || d.Port != 0
	}
	domains, cidrs := map[string]bool{}, map[string]bool{}
	for _, d := range all {
		switch {
		case d.Name != "" && d.Port == 0 && named[d.Name]: // resolved and then connected to
		case d.Name != "":
			d.Port = cmp.Or(d.Port, name.HTTPSPort)
			domains[d.entry()] = true
		case d.Addr.IsValid():
			cidrs[netip.PrefixFrom(d.Addr, d.Addr.BitLen()).String()] = true
		}
	}
	return specOf(slices.Sorted(maps.Keys(domains)), slices.Sorted(maps.Keys(cidrs)))
}

func specOf(domains, cidrs []string) policy.Spec {
	if len(domains)+len(cidrs) == 0 {
		return policy.Spec{Mode: policy.ModeDenyAll}
	}
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains, AllowedCIDRs: cidrs, DNS: policy.DNSStrict}
}

// Seen is traffic that passed, summed up.
type Seen struct {
	Destination
	Entry       string   // of allowed_cidrs, if that allowed it; then Name is not verified
	Refusal     string   // why the policy would have refused it, as the rule of reason would_deny; "": it allowed it
	Method      string   // of requests that the gateway read; "": they were not read
	Paths       []string // of these requests, without queries
	Shape       string   // of these paths, with {n} and {id} for numbers and identifiers
	More        bool     // Paths is incomplete
	Count       uint64
	First, Last time.Time
}

// Evidence is why an entry is proposed.
type Evidence struct {
	Count    uint64    `json:"count" doc:"of connections and requests"`
	First    time.Time `json:"first_seen"`
	Last     time.Time `json:"last_seen"`
	Refusals []string  `json:"refusals,omitempty" doc:"why the policy would have refused it; absent: the policy allows it"`
	Names    []string  `json:"names,omitempty" doc:"of a wildcard, or of cluster:services: some of the names that were seen. Those of services have their port, and can replace that entry"`
	NameN    int       `json:"names_seen,omitempty" doc:"of a wildcard: how many different names were seen"`
}

// Line is an entry with its evidence.
type Line struct {
	Entry string `json:"entry"`
	Evidence
}

// Why is the reason for which an entry was left out of a proposal.
type Why string

// The reasons.
const (
	WhyTelemetry Why = "telemetry"  // a service that programs report their use to
	WhyLookAlike Why = "look_alike" // the name imitates another one
	WhyPunycode  Why = "punycode"   // the name has characters that may look like others
	WhyAddress   Why = "address"    // an entry for an address opens all its ports, under any name
)

// Apart is an entry that was left out.
type Apart struct {
	Line
	Why  Why    `json:"why" enum:"telemetry look_alike punycode address"`
	Like string `json:"like,omitempty" doc:"the name that it imitates"`
}

// Proposal is a policy with the evidence for it.
type Proposal struct {
	Policy  policy.Spec `json:"policy"`
	Domains []Line      `json:"domains" doc:"evidence for allowed_domains, in that order"`
	CIDRs   []Line      `json:"cidrs,omitempty" doc:"evidence for allowed_cidrs, which the policy has already"`
	Apart   []Apart     `json:"apart" doc:"entries that are not in the policy, and why"`
	Omitted int         `json:"omitted,omitempty" doc:"further entries, because there were too many"`
	// Requests explains the rules of the policy, in their order.
	Requests []Line `json:"requests,omitempty" doc:"evidence for rules"`
}

// Propose returns the least policy for all that was seen under the policy now. It keeps the denied lists of that policy and its rules for
// hosts that are still allowed. It depends on nothing else.
func Propose(now policy.Spec, seen []Seen) Proposal {
	g := gather(seen)
	p := Proposal{Domains: []Line{}, Apart: []Apart{}}
	known := knownNames(now)
	var lines []*host
	for _, h := range g.hosts {
		why, like := h.doubt(known)
		if why == "" {
			lines = append(lines, h)
			continue
		}
		p.leaveOut(Apart{h.line(), why, like})
	}
	for _, l := range g.addrs {
		p.leaveOut(Apart{l, WhyAddress, ""})
	}
	if len(lines) > MaxEntries {
		p.Omitted += len(lines) - MaxEntries
		lines = lines[:MaxEntries]
	}
	p.Domains = wildcards(now, lines, p.Apart)
	p.CIDRs = g.cidrs
	p.Policy = specOf(entriesOf(p.Domains), entriesOf(p.CIDRs))
	if p.Policy.Mode == policy.ModeCustom {
		p.keep(now)
		p.addRules(now, lines)
	}
	return p
}

func (p *Proposal) leaveOut(a Apart) {
	if len(p.Apart) == MaxApart {
		p.Omitted++
		return
	}
	p.Apart = append(p.Apart, a)
}

// keep takes over the parts of the policy that do not depend on the traffic.
func (p *Proposal) keep(now policy.Spec) {
	p.Policy.DeniedDomains, p.Policy.DeniedCIDRs = slices.Clone(now.DeniedDomains), slices.Clone(now.DeniedCIDRs)
	p.Policy.DeniedNames, p.Policy.UpstreamProxy, p.Policy.Repos = now.DeniedNames, now.UpstreamProxy, slices.Clone(now.Repos)
	if len(now.DeniedDomains)+len(now.DeniedCIDRs) > 0 {
		p.Policy.Precedence = now.Precedence
	}
}

func entriesOf(lines []Line) (list []string) {
	for _, l := range lines {
		list = append(list, l.Entry)
	}
	return list
}

// host is the traffic to one name on one port.
type host struct {
	Destination
	Evidence
	requests []Seen // that were read
}

func (h *host) line() Line { return Line{h.entry(), h.Evidence} }

// gathered is traffic by destination. All lists are in the order of the first sight.
type gathered struct {
	hosts        []*host
	cidrs, addrs []Line
}

// gather sums up traffic by destination.
func gather(seen []Seen) (g gathered) {
	hosts, addrs, cidrs := map[Destination]*host{}, map[string]*Line{}, map[string]*Line{}
	services := map[string]bool{}
	for _, s := range seen {
		d := s.Destination
		tcp := d.Protocol == policy.TCP || d.Protocol == ""
		switch parsed, err := name.Parse(d.Name); {
		case s.Entry != "": // whatever name the box gave: the address was not one of the name
			lineOf(cidrs, s.Entry).add(s)
			if s.Entry == policy.ClusterServices && err == nil && d.Port != 0 { // narrower entries, if the names are right
				services[Destination{Name: parsed.String(), Port: d.Port}.entry()] = true
			}
		case tcp && err == nil && d.Port != 0:
			d = Destination{Name: parsed.String(), Port: d.Port}
			h := hosts[d]
			if h == nil {
				h = &host{Destination: d}
				hosts[d] = h
			}
			h.add(s)
			if s.Method != "" {
				h.requests = append(h.requests, s)
			}
		case d.Addr.IsValid():
			lineOf(addrs, netip.PrefixFrom(d.Addr.Unmap(), d.Addr.Unmap().BitLen()).String()).add(s)
		}
	}
	if len(services) > 0 {
		l, names := cidrs[policy.ClusterServices], slices.Sorted(maps.Keys(services))
		l.NameN, l.Names = len(names), names[:min(len(names), maxNames)]
	}
	g.hosts = slices.SortedFunc(maps.Values(hosts), func(a, b *host) int { return cmp.Or(a.First.Compare(b.First), strings.Compare(a.entry(), b.entry())) })
	g.cidrs, g.addrs = sortedLines(cidrs), sortedLines(addrs)
	return g
}

func lineOf(in map[string]*Line, entry string) *Line {
	if in[entry] == nil {
		in[entry] = &Line{Entry: entry}
	}
	return in[entry]
}

func sortedLines(in map[string]*Line) (out []Line) {
	for _, l := range slices.SortedFunc(maps.Values(in), func(a, b *Line) int {
		return cmp.Or(a.First.Compare(b.First), strings.Compare(a.Entry, b.Entry))
	}) {
		out = append(out, *l)
	}
	return out
}

// add adds traffic to the evidence.
func (e *Evidence) add(s Seen) {
	e.merge(Evidence{Count: s.Count, First: s.First, Last: s.Last})
	if s.Refusal != "" {
		e.refuse(s.Refusal)
	}
}

// maxRefusals is how many different refusals are listed.
const maxRefusals = 4

func (e *Evidence) refuse(why string) {
	if i, known := slices.BinarySearch(e.Refusals, why); !known && len(e.Refusals) < maxRefusals {
		e.Refusals = slices.Insert(e.Refusals, i, why)
	}
}

func (e *Evidence) merge(o Evidence) {
	if e.Count == 0 && e.First.IsZero() || o.First.Before(e.First) {
		e.First = o.First
	}
	if o.Last.After(e.Last) {
		e.Last = o.Last
	}
	e.Count += o.Count
	for _, why := range o.Refusals {
		e.refuse(why)
	}
}
