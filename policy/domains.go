package policy

import (
	"strings"

	"boxgate/policy/name"
)

// domains finds the denied and the allowed pattern that cover a name, in one walk over its labels. It finds the most specific
// pattern: the name itself, then "*.parent" from the longest parent up, then "*".
type domains struct {
	nodes map[string]*domainNode // by name, without "*."
	any   domainNode             // "*", in its below lists
	deep  int                    // largest number of labels of a key of nodes
}

// domainNode has the patterns with one name.
type domainNode struct {
	denied, allowed portRules // the name itself
	below           struct{ denied, allowed portRules }
}

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

// entries is the result of a walk. An empty rule can be valid, so each has a flag.
type entries struct {
	denyRule, allowRule string
	denied, allowed     bool
}

func newDomains(denied, allowed []domain) *domains {
	d := &domains{nodes: map[string]*domainNode{}}
	for _, e := range denied {
		exact, below := d.node(e.pattern)
		rules := &exact.denied
		if below {
			rules = &exact.below.denied
		}
		*rules = append(*rules, portRule{e.pattern.Port(), e.rule})
	}
	for _, e := range allowed {
		exact, below := d.node(e.pattern)
		rules := &exact.allowed
		if below {
			rules = &exact.below.allowed
		}
		*rules = append(*rules, portRule{e.pattern.Port(), e.rule})
	}
	return d
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

// match walks from the name to its last label. With wholeNames, on an unknown port (as in DNS), a denied pattern with a port does
// not deny the name.
func (d *domains) match(n name.Name, port uint16, wholeNames bool) (m entries) {
	if n.IsZero() {
		return m
	}
	if len(d.nodes) > 0 {
		d.walk(n.String(), port, wholeNames, &m)
	}
	m.matchPort(d.any.below.denied, d.any.below.allowed, port, wholeNames)
	return m
}

func (d *domains) walk(name string, port uint16, wholeNames bool, m *entries) {
	skip := strings.Count(name, ".") + 1 - d.deep
	for at := name; ; {
		if skip <= 0 {
			if node := d.nodes[at]; node != nil {
				if len(at) == len(name) {
					m.matchPort(node.denied, node.allowed, port, wholeNames)
				} else {
					m.matchPort(node.below.denied, node.below.allowed, port, wholeNames)
				}
				if m.denied {
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

func (m *entries) matchPort(denied, allowed portRules, port uint16, wholeNames bool) {
	if !m.denied && len(denied) > 0 {
		if wholeNames {
			m.denyRule, m.denied = denied.findWhole(port)
		} else {
			m.denyRule, m.denied = denied.find(port)
		}
	}
	if !m.allowed && len(allowed) > 0 {
		m.allowRule, m.allowed = allowed.find(port)
	}
}

// deniesWhole reports whether denied_domains covers all of a pattern.
func (d *domains) deniesWhole(p name.Pattern) bool {
	covers := func(rs portRules) bool {
		_, ok := rs.findWhole(p.Port())
		return ok
	}
	if covers(d.any.below.denied) {
		return true
	}
	for at, first := p.Name().String(), true; at != ""; first = false {
		if node := d.nodes[at]; node != nil {
			if first && !p.IsWildcard() && covers(node.denied) || (!first || p.IsWildcard()) && covers(node.below.denied) {
				return true
			}
		}
		dot := strings.IndexByte(at, '.')
		if dot < 0 {
			break
		}
		at = at[dot+1:]
	}
	return false
}
