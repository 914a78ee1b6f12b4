package policy

// readMatch reads a match without checking its values.
func readMatch(at string, v value, ps *problems) *Match {
	var m Match
	v.fields(at, "an object with methods, path, query and headers", ps, map[string]func(string, value){
		"methods": func(at string, v value) { m.Methods = v.strings(at, ps) },
		"path":    func(at string, v value) { m.Path = readMatcher(at, v, ps) },
		"query":   func(at string, v value) { m.Query = readPairs(at, v, ps) },
		"headers": func(at string, v value) { m.Headers = readPairs(at, v, ps) },
	})
	return &m
}

func readMatcher(at string, v value, ps *problems) *Matcher {
	var m Matcher
	text := func(to **string) func(string, value) {
		return func(at string, v value) {
			s := v.string(at, ps)
			*to = &s
		}
	}
	v.fields(at, `an object with one of "exact", "prefix" and "regex"`, ps, map[string]func(string, value){
		"exact": text(&m.Exact), "prefix": text(&m.Prefix), "regex": text(&m.Regex),
	})
	return &m
}

// readPairs reads both forms of conditions on a query or on headers.
func readPairs(at string, v value, ps *problems) (out MatchPairs) {
	switch v.kind {
	case kindObject:
		for i, name := range v.keys {
			value := readMatcher(pointer(at, name), v.items[i], ps)
			out.Pairs = append(out.Pairs, MatchPair{*MatchExact(name), value})
		}
	case kindList:
		for i, item := range v.items {
			at := element(at, i)
			pair := MatchPair{}
			item.fields(at, "an object with key and value", ps, map[string]func(string, value){
				"key":   func(at string, v value) { pair.Key = *readMatcher(at, v, ps) },
				"value": func(at string, v value) { pair.Value = readMatcher(at, v, ps) },
			})
			out.Pairs = append(out.Pairs, pair)
		}
	default:
		ps.add(at, "is %s; want an object of names and matchers, or a list of keys and values", v.kind)
	}
	return out
}
