package match

import "strings"

// maxQueryPairs is how many parameters of a query are looked at. Of a longer one the fit is unsure.
const maxQueryPairs = 512

// found collects the parameters or fields that a matcher is about.
type found struct {
	best  Fit             // of any one
	some  bool            // there is one
	names map[string]bool // their names, folded, unless the matcher is about one name alone
	twice bool            // one of them surely fits, and another may have the same name
}

// add takes one whose name fits as said. Names are looked up, not compared with each other: a request may have hundreds, and a
// host hundreds of matchers.
func (s *found) add(m *pairMatcher, name string, f Fit, e *effort) {
	s.best = max(s.best, f)
	if m.key.exact {
		s.twice = s.twice || s.some
		s.some = true
		return
	}
	if !e.spend(nameSteps + compareSteps*len(name)) {
		s.best, s.twice = max(s.best, Unsure), true
		return
	}
	if s.names == nil {
		s.names = map[string]bool{}
	}
	s.twice = s.twice || s.names[name]
	s.names[name] = true
}

// fit is that of the whole request: of a name that is repeated, servers take the first, the last or all.
func (s *found) fit() Fit {
	if s.twice {
		return min(s.best, Unsure)
	}
	return s.best
}

// fitQuery compares a query as sent. Some servers separate parameters at ";" as well as at "&".
func (m *pairMatcher) fitQuery(query string, e *effort) Fit {
	f := m.fitParameters(query, "&", e)
	if strings.Contains(query, ";") {
		other := m.fitParameters(query, "&;", e)
		f = agreed(min(f, other), max(f, other))
	}
	return f
}

func (m *pairMatcher) fitParameters(query, separators string, e *effort) Fit {
	if !e.spend(splitSteps * len(query)) {
		return Unsure
	}
	var s found
	for n := 0; query != ""; n++ {
		if n == maxQueryPairs {
			return Unsure
		}
		pair := query
		if i := strings.IndexAny(query, separators); i >= 0 {
			pair, query = query[:i], query[i+1:]
		} else {
			query = ""
		}
		name, value, _ := strings.Cut(pair, "=")
		if f := m.fitName(name, e); f > Unfit {
			s.add(m, foldParameter(decodePercent(name)), m.fitParameter(f, value, e), e)
		}
	}
	return s.fit()
}

// fitParameter compares the value of a parameter whose name fits as said.
func (m *pairMatcher) fitParameter(name Fit, value string, e *effort) Fit {
	switch {
	case m.anyValue:
		return name
	case hasOldEscape(value):
		return min(name, Unsure)
	}
	return min(name, m.value.all(readingsOf(value), e))
}

// fitName compares the name of a parameter. Frameworks rewrite names: PHP makes "_" of dots and spaces, and several read
// "name[]" and "name[0]" as elements of name.
func (m *pairMatcher) fitName(raw string, e *effort) Fit {
	if m.key.exact && raw == m.key.text {
		return Fits // the common case, without decoding
	}
	if hasOldEscape(raw) {
		return Unsure
	}
	all := namesOf(raw)
	f := m.key.all(all, e)
	if f > Unfit || !m.key.exact {
		return f
	}
	for _, s := range all {
		base, _, _ := strings.Cut(foldParameter(s), "[")
		if base == m.folded || foldParameter(s) == m.folded {
			return Unsure
		}
	}
	return Unfit
}

// namesOf is readingsOf for the name of a parameter: of "??a=1" some servers drop the second question mark, and of what begins
// with NUL bytes or blanks others drop those.
func namesOf(raw string) []string {
	all := readingsOf(raw)
	for _, s := range all {
		if bare := strings.TrimLeft(s, "?\x00 \t\r\n\v\f"); bare != s && bare != "" {
			all = append(all, bare)
		}
	}
	return all
}

var parameterFolds = strings.NewReplacer(" ", "_", ".", "_", "-", "_", "+", "_")

// foldParameter returns the name of a parameter as the most lenient framework reads it.
func foldParameter(name string) string {
	return parameterFolds.Replace(strings.ToLower(strings.TrimSpace(name)))
}

// fitFields compares header fields. Servers that turn headers into variables read "_" as "-".
func (m *pairMatcher) fitFields(fields *Fields, e *effort) Fit {
	if !fields.knows(m) {
		return Unsure
	}
	var s found
	for _, field := range fields.List {
		if !e.spend(splitSteps * (len(field.Name) + len(field.Value) + 1)) {
			return Unsure
		}
		folded := FoldHeader(field.Name)
		name := m.key.one(strings.ToLower(field.Name), e)
		if name < Fits && m.key.exact && folded == m.folded {
			name = Unsure
		}
		if name > Unfit {
			s.add(m, folded, min(name, m.fitField(field.Value, e)), e)
		}
	}
	return s.fit()
}

// fitField compares the value of a field, which servers may read as a list.
func (m *pairMatcher) fitField(value string, e *effort) Fit {
	if m.anyValue {
		return Fits
	}
	f := m.value.one(value, e)
	if f > Unfit || !strings.Contains(value, ",") {
		return f
	}
	for element := range strings.SplitSeq(value, ",") {
		if m.value.one(strings.Trim(element, " \t"), e) > Unfit {
			return Unsure
		}
	}
	return Unfit
}
