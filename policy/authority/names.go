package authority

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"boxgate/policy"
	"boxgate/policy/name"
)

// base is a name that some pattern mentions. The names below it, other than below a longer base, are decided alike.
type base struct {
	name  string   // "" for all names
	ports []uint16 // of patterns with this name or a shorter one
}

// bases returns the mentioned names, parents first.
func (w *world) bases() (list []base) {
	ports := map[string][]uint16{"": nil}
	for _, p := range w.patterns {
		at := p.Name().String()
		ports[at] = append(ports[at], p.Port())
	}
	for at := range ports {
		if w.ended() {
			return nil
		}
		b := base{name: at, ports: []uint16{w.other, 853}}
		for up, more := at, true; more; _, up, more = strings.Cut(up, ".") {
			b.ports = append(b.ports, ports[up]...)
		}
		b.ports = append(b.ports, ports[""]...)
		slices.Sort(b.ports)
		b.ports = slices.Compact(b.ports)
		if b.ports[0] == 0 {
			b.ports = b.ports[1:]
		}
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b base) int {
		return cmp.Or(cmp.Compare(strings.Count(a.name, ".")*min(1, len(a.name)), strings.Count(b.name, ".")*min(1, len(b.name))), cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
	})
	return list
}

// names returns the names that are allowed more.
func (w *world) names() (lines []Line) {
	wide := map[string]Line{} // the lines of the names below a base
	for _, b := range w.bases() {
		for _, wild := range []bool{true, false} {
			if !wild && b.name == "" {
				continue
			}
			line, ok := w.nameLine(b, wild)
			if !ok || w.coveredAbove(line, b.name, wild, wide) {
				continue
			}
			if wild {
				wide[b.name] = line
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// coveredAbove reports whether the line of the names below a shorter base covers a line.
func (w *world) coveredAbove(line Line, at string, wild bool, wide map[string]Line) bool {
	if n, err := name.Parse(at); err == nil && n.IsService() {
		return false // a wildcard opens no service
	}
	inCluster := func(at string) bool {
		n, err := name.Parse(at)
		return err == nil && w.after.InCluster(n)
	}
	for begin := at; at != "" && (!inCluster(begin) || inCluster(up(at))); { // no shorter wildcard opens names of a cluster
		at = up(at)
		if above, ok := wide[at]; ok && (len(above.Ports) == 0 || len(line.Ports) > 0 && !slices.ContainsFunc(line.Ports, func(p uint16) bool { return !slices.Contains(above.Ports, p) })) && (above.Kind == KindName || line.Kind == KindQuery) {
			return true
		}
	}
	return false
}

// up returns the name without its first label.
func up(at string) string {
	_, rest, _ := strings.Cut(at, ".")
	return rest
}

// nameLine returns the line of a base, or of the names below it.
func (w *world) nameLine(b base, wild bool) (Line, bool) {
	line := Line{Kind: KindName, Name: b.name}
	if wild {
		line.Name = strings.TrimSuffix("*."+b.name, ".")
	}
	n, ok := w.member(b.name, wild)
	if !ok {
		return Line{}, false
	}
	for _, port := range b.ports {
		if w.ended() {
			return Line{}, false
		}
		if !w.gains(policy.Request{Stage: policy.StageConn, Name: n, Port: port, Protocol: policy.TCP}, w.listed) {
			continue
		}
		if port == w.other {
			line.Ports = nil
			return w.finish(line, b.name, wild), true
		}
		line.Ports = append(line.Ports, port)
	}
	if len(line.Ports) > 0 {
		return w.finish(line, b.name, wild), true
	}
	line.Kind = KindQuery
	r := policy.Request{Stage: policy.StageDNS, Name: n}
	return line, answers(w.after, r) > answers(w.before, r)
}

// answers returns how much of the answers for a name a policy lets pass: none, addresses that are allowed, or all.
func answers(c *policy.Compiled, r policy.Request) int {
	switch d := decide(c, r); {
	case d.Allowed():
		return 2
	case d.Reason == name.ReasonNotAllowed && c.ResolvesOthers(r.Name):
		return 1
	}
	return 0
}

// member returns a name of a class: the base, or one below it and below no longer base.
func (w *world) member(at string, wild bool) (name.Name, bool) {
	if !wild {
		n, err := name.Parse(at)
		return n, err == nil
	}
	for label := "other"; len(label) < 60; label += "x" {
		n, err := name.Parse(strings.TrimSuffix(label+"."+at, "."))
		if err != nil {
			return name.Name{}, false // the base is as long as names can be: no name is below it
		}
		if !w.mentioned[n.String()] { // no other longer base can cover a name that is one label below this one
			return n, true
		}
	}
	return name.Name{}, false
}

// finish adds the header rules that cover names of a line, and whether it is wide.
func (w *world) finish(line Line, at string, wild bool) Line {
	line.Wide = wild && isPublicSuffix(at)
	p, err := name.ParsePattern(line.Name)
	for _, h := range w.headers {
		if err == nil && meet(p, h) && (len(line.Ports) == 0 || slices.Contains(line.Ports, h.Port())) {
			line.Headers = append(line.Headers, h.String())
		}
	}
	return line
}

// HideHeaders removes header rules from the lines, other than the given ones.
func (d *Difference) HideHeaders(but []policy.HeaderRule) {
	for _, list := range [][]Line{d.Gained, d.Lost} {
		for i := range list {
			list[i].Headers = slices.DeleteFunc(list[i].Headers, func(h string) bool {
				return !slices.ContainsFunc(but, func(r policy.HeaderRule) bool { return r.Pattern.WithDefaultPort(name.HTTPSPort).String() == h })
			})
		}
	}
}

// meet reports whether a name can match both patterns, on some port.
func meet(p, q name.Pattern) bool {
	p, q = p.WithPort(0), q.WithPort(0)
	return p.Covers(q) || q.Covers(p)
}

// isPublicSuffix reports whether anybody can register a name below a name; "" is the root.
func isPublicSuffix(at string) bool {
	if at == "" {
		return true
	}
	suffix, _ := publicsuffix.PublicSuffix(at)
	return suffix == at
}

// encoded returns a value as JSON, to compare.
func encoded(v any) string {
	text, err := json.Marshal(v)
	if err != nil { // these types can be encoded
		return err.Error()
	}
	return string(text)
}
