package dialect

import (
	"net/netip"
	"strings"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// The keys of Daytona's network settings.
const (
	daytonaBlock   = "networkBlockAll"
	daytonaCIDRs   = "networkAllowList"
	daytonaDomains = "domainAllowList"
)

// maxDaytonaCIDRs is the number of networks that Daytona accepts.
const maxDaytonaCIDRs = 10

// ParseDaytona reads the network settings of a sandbox of Daytona and translates them:
//
//	{networkBlockAll: boolean, networkAllowList: "cidr,cidr…", domainAllowList: "domain,*.domain…"}
//
// In Daytona, networkBlockAll wins: the lists are checked and then have no effect. Otherwise, destinations in one of the lists are allowed
// and all others are denied; without lists, everything is allowed. Entries are trimmed, and empty ones between commas skipped. Networks
// are IPv4 with a prefix length, at most ten, and their host bits are ignored as there. A list without any entry is refused, because
// Daytona does not document whether it denies or allows everything. The services that Daytona opens by itself are not opened. The error
// is an *[document.InvalidError] that lists every problem.
func ParseDaytona(data []byte) (policy.Spec, error) {
	var ps document.Problems
	doc, ok := document.Parse(data, &ps)
	if !ok {
		return policy.Spec{}, ps.Err()
	}
	return translateDaytona(doc, &ps)
}

// isDaytona reports whether a document is in Daytona's dialect rather than boxgate's.
func isDaytona(doc document.Value) bool {
	return doc.Kind == document.Object && !doc.Has("mode") && (doc.Has(daytonaBlock) || doc.Has(daytonaCIDRs) || doc.Has(daytonaDomains))
}

func translateDaytona(doc document.Value, ps *document.Problems) (policy.Spec, error) {
	blocked := false
	var cidrs, domains []string
	doc.Fields("", "an object with networkBlockAll, networkAllowList and domainAllowList", ps, map[string]func(string, document.Value){
		daytonaBlock: func(at string, v document.Value) {
			if v.Kind != document.Bool {
				ps.Add(at, "is %s; want true or false", v.Kind)
			}
			blocked = v.Truth
		},
		daytonaCIDRs: func(at string, v document.Value) { cidrs = readDaytonaList(at, v, maxDaytonaCIDRs, daytonaCIDR, ps) },
		daytonaDomains: func(at string, v document.Value) {
			domains = readDaytonaList(at, v, policy.MaxEntries, daytonaDomain, ps)
		},
		"outboundProxyUrl": func(at string, _ document.Value) {
			ps.Add(at, "boxgate has it as upstream_proxy of a policy in its own form; leave it out here")
		},
	})
	if doc.Kind == document.Object && !isDaytona(doc) {
		ps.Add("", "lacks networkBlockAll, networkAllowList and domainAllowList; give one of them at least")
	}
	if err := ps.Err(); err != nil {
		return policy.Spec{}, err
	}
	switch {
	case blocked:
		return policy.Spec{Mode: policy.ModeDenyAll}, nil
	case len(cidrs)+len(domains) == 0:
		return policy.Spec{Mode: policy.ModeAllowAll}, nil
	}
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains, AllowedCIDRs: cidrs}, nil
}

// readDaytonaList reads a list whose entries are separated by commas, each once. read returns an entry in boxgate's form, or what is
// wrong with it.
func readDaytonaList(at string, v document.Value, most int, read func(string) (entry, problem string), ps *document.Problems) (list []string) {
	if v.Kind != document.Text {
		ps.Add(at, "is %s; want a string of entries that are separated by commas", v.Kind)
		return nil
	}
	var entries []string
	n := 0
	for s := range strings.SplitSeq(v.Text, ",") { // a text of megabytes may be commas alone
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if n++; n <= most {
			entries = append(entries, s)
		}
	}
	if n == 0 {
		ps.Add(at, "has no entry; leave it out, or set networkBlockAll")
	}
	if ps.TooMany(at, n, most) {
		return nil
	}
	var problems []string
	seen := map[string]bool{}
	for _, s := range entries {
		entry, problem := read(s)
		if problem != "" {
			problems = append(problems, problem)
		} else if !seen[entry] {
			seen[entry], list = true, append(list, entry)
		}
	}
	if len(problems) > maxDaytonaCIDRs {
		problems = append(problems[:maxDaytonaCIDRs], "and so on")
	}
	if len(problems) > 0 {
		ps.Add(at, "%s", strings.Join(problems, "; "))
	}
	return list
}

// daytonaCIDR reads a network of IPv4.
func daytonaCIDR(s string) (entry, problem string) {
	p, err := netip.ParsePrefix(s)
	a, errAddr := netip.ParseAddr(s)
	switch {
	case err == nil && p.Addr().Is4():
		return p.Masked().String(), ""
	case err == nil:
		return "", name.Quote(s) + " is not IPv4, and there the list has no other networks"
	case errAddr == nil && a.Is4():
		return "", name.Quote(s) + " has no prefix length; use " + name.Quote(s+"/32")
	}
	if _, err := name.ParsePattern(s); err == nil {
		return "", name.Quote(s) + " is no network; names belong in domainAllowList"
	}
	return "", name.Quote(s) + " is no network, such as 192.0.2.0/24"
}

// daytonaDomain reads a name or "*." and a name.
func daytonaDomain(s string) (entry, problem string) {
	p, err := name.ParsePattern(s)
	switch {
	case name.MeansAddress(s):
		return "", name.Quote(s) + " is an address; networks belong in networkAllowList"
	case err != nil:
		return "", err.Error()
	case p.Name().IsZero():
		return "", `"*" would allow every host; leave the lists out for that`
	case p.Port() != 0 || strings.Contains(s, ":"):
		return "", name.Quote(s) + " is no domain; leave out the port"
	}
	return s, ""
}

// writeDaytona returns a policy in Daytona's dialect.
func writeDaytona(spec policy.Spec, rules []policy.HeaderRule, ps *document.Problems) any {
	checkForeign(spec, ps)
	if spec.UpstreamProxy != nil {
		ps.Add("/upstream_proxy", "the other dialect has no upstream proxies that a sandbox cannot evade")
	}
	if len(spec.DeniedCIDRs) > 0 {
		ps.Add("/denied_cidrs", "the other dialect denies no addresses")
	}
	for _, r := range rules {
		ps.Add(document.Pointer("/attach_headers", r.Pattern.String()), "the other dialect changes no requests")
	}
	switch spec.Mode {
	case policy.ModeAllowAll:
		return map[string]any{daytonaBlock: false}
	case policy.ModeDenyAll:
		return map[string]any{daytonaBlock: true}
	}
	out := map[string]any{}
	write := func(key, from string, list []string, read func(string) (string, string)) {
		for i, s := range list {
			if _, problem := read(s); problem != "" {
				ps.Add(document.Element(from, i), "%s", problem)
			}
		}
		if len(list) > 0 {
			out[key] = strings.Join(list, ",")
		}
	}
	var cidrs []string
	for _, s := range spec.AllowedCIDRs {
		if a, err := netip.ParseAddr(s); err == nil && a.Is4() {
			s += "/32"
		}
		cidrs = append(cidrs, s)
	}
	ps.TooMany("/allowed_cidrs", len(cidrs), maxDaytonaCIDRs)
	write(daytonaCIDRs, "/allowed_cidrs", cidrs, daytonaCIDR)
	write(daytonaDomains, "/allowed_domains", spec.AllowedDomains, daytonaDomain)
	return out
}
