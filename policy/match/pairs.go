package match

import "strings"

// maxQueryPairs is the largest number of parameters that are compared. The fit of longer queries is unsure.
const maxQueryPairs = 512

// found collects the parameters or fields with the name of a matcher.
type found struct {
	best  Fit             // the best of all
	some  bool            // there is at least one
	names map[string]bool // their folded names, unless the matcher has a single name
	twice bool            // one certainly fits, and another may have the same name
}

// add adds a parameter or field, given the fit of its name. It looks names up in a map instead of comparing each with each: a request
// may have hundreds of them, and a host hundreds of matchers.
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

// fit returns the fit of the whole request. If a name is repeated, servers use the first, the last or all values.
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

// fitParameter compares the value of a parameter, given the fit of its name.
func (m *pairMatcher) fitParameter(name Fit, value string, e *effort) Fit {
	switch {
	case m.anyValue:
		return name
	case hasOldEscape(value):
		return min(name, Unsure)
	}
	return min(name, m.value.all(readingsOf(value), e))
}

// fitName compares the name of a parameter. Frameworks rewrite names: PHP replaces dots and spaces by "_", and several interpret
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

// namesOf is readingsOf for the name of a parameter. Some servers drop the second question mark of "??a=1", and others NUL bytes
// and blanks at the beginning.
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

// foldParameter returns the name of a parameter as the most lenient framework interprets it.
func foldParameter(name string) string {
	return parameterFolds.Replace(strings.ToLower(strings.TrimSpace(name)))
}

// fitFields compares header fields. "_" is equal to "-" for servers that turn headers into variables.
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

// fitField compares the value of a field, which servers may interpret as a list.
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
