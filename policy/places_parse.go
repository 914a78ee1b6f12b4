package policy

import (
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// This file reads the "places" and "query" members of a header rule.

// places reads a list of places.
func (p *headerParser) places(at string, v document.Value) Places {
	names := v.AsStrings(at, &p.Problems)
	all := append([]string{headerPlace}, placeNames...)
	for i, name := range names {
		if !slices.Contains(all, name) {
			p.Add(document.Element(at, i), "is not one of %s", strings.Join(all, ", "))
		}
	}
	if v.Kind == document.List && !slices.Contains(names, headerPlace) {
		p.Add(at, `lacks "header": header values are always a place`)
	}
	places, _ := PlacesOf(names)
	return places
}

const maxQueryParameters = 16

// query reads the parameters to set.
func (p *headerParser) query(at string, v document.Value) []QueryParameter {
	if v.Kind != document.Object {
		p.Add(at, "is %s; want an object of parameter names and values", v.Kind)
		return nil
	}
	if len(v.Keys) > maxQueryParameters {
		p.Add(at, "there are %d parameters; the limit for one host is %d", len(v.Keys), maxQueryParameters)
		return nil
	}
	parameters := make([]QueryParameter, 0, len(v.Keys))
	for i, n := range v.Keys {
		shown := name.Shown(n, isParameterByte)
		at := document.Pointer(at, shown)
		if shown != n || n == "" || len(n) > 128 || !name.IsWordByte(n[0]) {
			p.Add(at, "%s is not the name of a parameter: up to 128 letters, digits, '_', '.' and '-', the first a letter or digit", name.Quote(shown))
		}
		text := p.value(at, shown, v.Items[i], true)
		if v.Items[i].Has("encode") {
			p.Add(document.Pointer(at, "encode"), "is for headers")
		}
		if text.source == "" && text.literal.Reveal() == "" {
			p.Add(at, "the value of %s is empty", name.Quote(shown))
		}
		parameters = append(parameters, QueryParameter{n, text.literal, text.source, text.prefix, text.suffix})
	}
	slices.SortFunc(parameters, func(a, b QueryParameter) int { return strings.Compare(a.Name, b.Name) })
	return parameters
}

func isParameterByte(c byte) bool { return name.IsWordByte(c) || c == '.' || c == '-' }
