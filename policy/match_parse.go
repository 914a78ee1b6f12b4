package policy

import "boxgate/policy/document"

// readMatch reads a match without checking its values.
func readMatch(at string, v document.Value, ps *document.Problems) *Match {
	var m Match
	v.Fields(at, "an object with methods, path, query and headers", ps, map[string]func(string, document.Value){
		"methods": func(at string, v document.Value) { m.Methods = v.AsStrings(at, ps) },
		"path":    func(at string, v document.Value) { m.Path = readMatcher(at, v, ps) },
		"query":   func(at string, v document.Value) { m.Query = readPairs(at, v, ps) },
		"headers": func(at string, v document.Value) { m.Headers = readPairs(at, v, ps) },
	})
	return &m
}

func readMatcher(at string, v document.Value, ps *document.Problems) *Matcher {
	var m Matcher
	text := func(to **string) func(string, document.Value) {
		return func(at string, v document.Value) {
			s := v.AsString(at, ps)
			*to = &s
		}
	}
	v.Fields(at, `an object with one of "exact", "prefix" and "regex"`, ps, map[string]func(string, document.Value){
		"exact": text(&m.Exact), "prefix": text(&m.Prefix), "regex": text(&m.Regex),
	})
	return &m
}

// readPairs reads both forms of conditions on a query or on headers.
func readPairs(at string, v document.Value, ps *document.Problems) (out MatchPairs) {
	switch v.Kind {
	case document.Object:
		for i, name := range v.Keys {
			value := readMatcher(document.Pointer(at, name), v.Items[i], ps)
			out.Pairs = append(out.Pairs, MatchPair{*MatchExact(name), value})
		}
	case document.List:
		for i, item := range v.Items {
			at := document.Element(at, i)
			pair := MatchPair{}
			item.Fields(at, "an object with key and value", ps, map[string]func(string, document.Value){
				"key":   func(at string, v document.Value) { pair.Key = *readMatcher(at, v, ps) },
				"value": func(at string, v document.Value) { pair.Value = readMatcher(at, v, ps) },
			})
			out.Pairs = append(out.Pairs, pair)
		}
	default:
		ps.Add(at, "is %s; want an object of names and matchers, or a list of keys and values", v.Kind)
	}
	return out
}
