package policy

import (
	"boxgate/policy/name"
	"slices"
	"strings"
)

// This file reads the "places" and "query" members of a header rule.

// places reads a list of places.
func (p *headerParser) places(at string, v value) Places {
	names := v.strings(at, &p.problems)
	all := append([]string{headerPlace}, placeNames...)
	for i, name := range names {
		if !slices.Contains(all, name) {
			p.add(element(at, i), "is not one of %s", strings.Join(all, ", "))
		}
	}
	if v.kind == kindList && !slices.Contains(names, headerPlace) {
		p.add(at, `lacks "header": header values are always a place`)
	}
	places, _ := PlacesOf(names)
	return places
}

const maxQueryParameters = 16

// query reads the parameters to set.
func (p *headerParser) query(at string, v value) []QueryParameter {
	if v.kind != kindObject {
		p.add(at, "is %s; want an object of parameter names and values", v.kind)
		return nil
	}
	if len(v.keys) > maxQueryParameters {
		p.add(at, "there are %d parameters; the limit for one host is %d", len(v.keys), maxQueryParameters)
		return nil
	}
	parameters := make([]QueryParameter, 0, len(v.keys))
	for i, n := range v.keys {
		shown := name.Shown(n, isParameterByte)
		at := pointer(at, shown)
		if shown != n || n == "" || len(n) > 128 || !name.IsWordByte(n[0]) {
			p.add(at, "%s is not the name of a parameter: up to 128 letters, digits, '_', '.' and '-', the first a letter or digit", name.Quote(shown))
		}
		text := p.value(at, shown, v.items[i], true)
		if v.items[i].has("encode") {
			p.add(pointer(at, "encode"), "is for headers")
		}
		if text.source == "" && text.literal.Reveal() == "" {
			p.add(at, "the value of %s is empty", name.Quote(shown))
		}
		parameters = append(parameters, QueryParameter{n, text.literal, text.source, text.prefix, text.suffix})
	}
	slices.SortFunc(parameters, func(a, b QueryParameter) int { return strings.Compare(a.Name, b.Name) })
	return parameters
}

func isParameterByte(c byte) bool { return name.IsWordByte(c) || c == '.' || c == '-' }
