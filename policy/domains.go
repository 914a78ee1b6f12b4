package policy

import (
	"slices"
	"strings"

	"boxgate/policy/name"
)

// domains finds the denied and the allowed pattern that cover a name, in one walk over its labels. It finds the most specific
// pattern: the name itself, then "*.parent" from the longest parent up, then "*".
type domains struct {
	nodes map[string]*domainNode // by name, without "*."
	any   domainNode             // "*", in its below lists
	deep  int                    // largest number of labels of a key of nodes
	// specific is the precedence of the more specific pattern. Otherwise denied patterns win.
	specific  bool
	overruled bool // some pattern is overruling
}

// domainNode has the patterns with one name.
type domainNode struct{ own, below patternRules }

// patternRules are the rules of one pattern. An overruling one denies regardless of the precedence.
type patternRules struct{ denied, allowed, overruling portRules }

// portRules are patterns that differ only in their port. There is nearly always one.
type portRules []portRule

type portRule struct {
	port uint16 // 0: every port
	rule string
}

// find returns the rule for a port. Port 0 is an unknown port, which matches every rule.
func (rs portRules) find(port uint16) (rule string, ok bool) {
	for i := range rs {
		if p := rs[i].port; p == 0 || port == 0 || p == port {
			return rs[i].rule, true
		}
	}
	return "", false
}

// findWhole is find, but on an unknown port only a rule for every port counts.
func (rs portRules) findWhole(port uint16) (rule string, ok bool) {
	for i := range rs {
		if p := rs[i].port; p == 0 || port != 0 && p == port {
			return rs[i].rule, true
		}
	}
	return "", false
}

// findDenied is findWhole with wholeNames, else find.
func (rs portRules) findDenied(port uint16, wholeNames bool) (rule string, ok bool) {
	switch {
	case len(rs) == 0:
		return "", false
	case wholeNames:
		return rs.findWhole(port)
	}
	return rs.find(port)
}

// entries is the result of a walk. An empty rule can be valid, so each has a flag.
type entries struct {
	denyRule, allowRule string
	denied, allowed     bool
}

func newDomains(parsed parsedSpec, specific bool) *domains {
	d := &domains{nodes: map[string]*domainNode{}, specific: specific, overruled: len(parsed.overrulingDomains) > 0}
	for _, e := range parsed.deniedDomains {
		here := d.at(e.pattern)
		here.denied = append(here.denied, portRule{e.pattern.Port(), e.rule})
	}
	allowed := parsed.allowedDomains
	if specific {
		allowed = parsed.withoutOutranked()
	}
	for _, e := range allowed {
		here := d.at(e.pattern)
		here.allowed = append(here.allowed, portRule{e.pattern.Port(), e.rule})
	}
	for _, e := range parsed.overrulingDomains {
		here := d.at(e.pattern)
		here.overruling = append(here.overruling, portRule{e.pattern.Port(), e.rule})
	}
	return d
}

// withoutOutranked returns the allowed patterns without ones that are denied on each of their ports, by the same pattern or by overruling
// ones. On an unknown port, as in DNS, they would still win over shorter denied patterns, so that a box could send queries to the servers
// of a denied zone. "*" is kept, as nothing is shorter.
func (p *parsedSpec) withoutOutranked() []domain {
	same := map[name.Pattern]bool{}
	for _, e := range p.deniedDomains {
		same[e.pattern] = true
	}
	return slices.DeleteFunc(slices.Clone(p.allowedDomains), func(e domain) bool {
		outranked := same[e.pattern] || same[e.pattern.WithPort(0)] ||
			slices.ContainsFunc(p.overrulingDomains, func(o domain) bool { return o.pattern.Covers(e.pattern) })
		return outranked && !e.pattern.Name().IsZero()
	})
}

// at returns the rules of a pattern, to add one.
func (d *domains) at(p name.Pattern) *patternRules {
	node, below := d.node(p)
	if below {
		return &node.below
	}
	return &node.own
}

func (d *domains) node(p name.Pattern) (node *domainNode, below bool) {
	at := p.Name().String()
	if at == "" {
		return &d.any, true
	}
	node = d.nodes[at]
	if node == nil {
		node = &domainNode{}
		d.nodes[at] = node
		d.deep = max(d.deep, 1+strings.Count(at, "."))
	}
	return node, p.IsWildcard()
}

// match walks from the name to its last label. If the result has both flags, the denied pattern wins. With wholeNames, on an unknown port
// (as in DNS), a denied pattern with a port does not deny the name.
func (d *domains) match(n name.Name, port uint16, wholeNames bool) (m entries) {
	if n.IsZero() {
		return m
	}
	if len(d.nodes) > 0 {
		d.walk(n.String(), port, wholeNames, &m)
	}
	if d.decided(&m) {
		return m
	}
	d.matchPort(&m, &d.any.below, port, wholeNames)
	return m
}

func (d *domains) walk(name string, port uint16, wholeNames bool, m *entries) {
	skip := strings.Count(name, ".") + 1 - d.deep
	for at := name; ; {
		if skip <= 0 {
			if node := d.nodes[at]; node != nil {
				if len(at) == len(name) {
					d.matchPort(m, &node.own, port, wholeNames)
				} else {
					d.matchPort(m, &node.below, port, wholeNames)
				}
				if d.decided(m) {
					return
				}
			}
		}
		dot := strings.IndexByte(at, '.')
		if dot < 0 {
			return
		}
		at = at[dot+1:]
		skip--
	}
}

// decided reports whether less specific patterns cannot change the result.
func (d *domains) decided(m *entries) bool {
	return m.denied || d.specific && m.allowed && !d.overruled
}

func (d *domains) matchPort(m *entries, here *patternRules, port uint16, wholeNames bool) {
	settled := d.specific && m.allowed // by a longer pattern
	m.denyRule, m.denied = here.overruling.findDenied(port, wholeNames)
	if settled || m.denied {
		return
	}
	m.denyRule, m.denied = here.denied.findDenied(port, wholeNames)
	if !m.allowed && len(here.allowed) > 0 {
		m.allowRule, m.allowed = here.allowed.find(port)
	}
}

// deniesWhole reports whether denied_domains covers all of a pattern, and no allowed pattern takes precedence for a part of it.
func (d *domains) deniesWhole(p name.Pattern) bool { return d.deniesWholeBut(p, d.allowsBelow) }

// deniesWholeBut is deniesWhole with another form of allowsBelow.
func (d *domains) deniesWholeBut(p name.Pattern, allowsBelow func(name.Pattern) bool) bool {
	if d.specific && p.IsWildcard() && allowsBelow(p) {
		return false
	}
	denied := false
	d.eachAbove(p, func(deniedHere, allowedHere portRules) (more bool) {
		_, denied = deniedHere.findWhole(p.Port())
		_, allowed := allowedHere.find(p.Port())
		return !denied && !(d.specific && allowed)
	})
	return denied
}

// outranked reports whether an allowed pattern has no effect, because denied_domains has the same one for the same ports.
func (d *domains) outranked(p name.Pattern) (denied bool) {
	d.eachAbove(p, func(here, _ portRules) (more bool) {
		_, denied = here.findWhole(p.Port())
		return false
	})
	return denied
}

// excepts reports whether an allowed pattern is an exception from a denied one.
func (d *domains) excepts(p name.Pattern) (excepted bool) {
	own := true
	d.eachAbove(p, func(denied, _ portRules) (more bool) {
		if _, found := denied.find(p.Port()); found && !own {
			excepted = true
		}
		own = false
		return !excepted
	})
	return excepted
}

// eachAbove calls visit with the rules of a pattern and of those that cover it, the most specific first, while visit returns true.
func (d *domains) eachAbove(p name.Pattern, visit func(denied, allowed portRules) (more bool)) {
	wild := p.IsWildcard()
	for at := p.Name().String(); at != ""; wild = true {
		var denied, allowed portRules
		if node := d.nodes[at]; node != nil && wild {
			denied, allowed = node.below.denied, node.below.allowed
		} else if node != nil {
			denied, allowed = node.own.denied, node.own.allowed
		}
		if !visit(denied, allowed) {
			return
		}
		dot := strings.IndexByte(at, '.')
		if dot < 0 {
			break
		}
		at = at[dot+1:]
	}
	visit(d.any.below.denied, d.any.below.allowed)
}

// allowsBelow reports whether an allowed pattern covers names that a wildcard covers, and is longer.
func (d *domains) allowsBelow(p name.Pattern) bool {
	suffix := "." + p.Name().String()
	for at, node := range d.nodes {
		if !p.Name().IsZero() && !strings.HasSuffix(at, suffix) {
			continue
		}
		for _, rules := range []portRules{node.own.allowed, node.below.allowed} {
			if _, found := rules.find(p.Port()); found {
				return true
			}
		}
	}
	return false
}

// allowsAbove reports whether an allowed pattern covers names that p covers, and is the same or shorter.
func (d *domains) allowsAbove(p name.Pattern) (allows bool) {
	d.eachAbove(p, func(_, allowed portRules) (more bool) {
		_, allows = allowed.find(p.Port())
		return !allows
	})
	return allows
}

// below answers [domains.allowsBelow] in logarithmic time, for many patterns. It has the names of the allowed patterns by port
// (0: every port), and in one list, each sorted, and each name written backwards.
type below struct {
	byPort map[uint16][]string
	all    []string
}

func (d *domains) indexBelow() below {
	b := below{byPort: map[uint16][]string{}}
	for at, node := range d.nodes {
		back := backwards(at)
		for _, rules := range []portRules{node.own.allowed, node.below.allowed} {
			for _, r := range rules {
				b.byPort[r.port] = append(b.byPort[r.port], back)
				b.all = append(b.all, back)
			}
		}
	}
	for _, list := range b.byPort {
		slices.Sort(list)
	}
	slices.Sort(b.all)
	return b
}

func backwards(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// allows reports whether an allowed pattern covers names that a wildcard covers, and is longer.
func (b *below) allows(p name.Pattern) bool {
	prefix := ""
	if !p.Name().IsZero() {
		prefix = backwards(p.Name().String()) + "."
	}
	some := func(list []string) bool {
		i, _ := slices.BinarySearch(list, prefix)
		return i < len(list) && strings.HasPrefix(list[i], prefix)
	}
	if p.Port() == 0 {
		return some(b.all)
	}
	return some(b.byPort[0]) || some(b.byPort[p.Port()])
}
