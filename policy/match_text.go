package policy

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// fit is how well a request meets a condition. The zero value is unfit. Of a request that is unsure some server may say
// that it meets the condition, and another that it does not: a rule that denies applies to it, one that allows or sends
// something does not.
type fit uint8

const (
	unfit fit = iota
	unsure
	fits
)

// maxMatchedText is the length of the longest text that regular expressions are tried on. Of a longer one the fit is
// unsure. It bounds the time that one takes.
const maxMatchedText = 4096

// textMatcher is a [Matcher] ready to compare.
type textMatcher struct {
	exact, any   bool // any: the empty prefix
	text, folded string
	re, foldedRE *regexp.Regexp // of a regex, and the same without regard to case
}

// one compares one reading of a text. What differs in case alone is unsure: some servers ignore case.
func (m *textMatcher) one(s string) fit {
	switch {
	case m.any:
		return fits
	case m.re != nil:
		return m.regex(s)
	case m.exact:
		switch {
		case s == m.text:
			return fits
		case strings.EqualFold(s, m.text) || strings.ToLower(s) == m.folded:
			return unsure
		}
	case strings.HasPrefix(s, m.text):
		return fits
	case strings.HasPrefix(strings.ToLower(s), m.folded):
		return unsure
	}
	return unfit
}

func (m *textMatcher) regex(s string) fit {
	switch {
	case len(s) > maxMatchedText:
		return unsure
	case m.re.MatchString(s):
		if !utf8.ValidString(s) {
			return unsure
		}
		return fits
	case m.foldedRE.MatchString(s):
		return unsure
	}
	return unfit
}

// all compares every reading of a text.
func (m *textMatcher) all(readings []string) fit {
	least, most := fits, unfit
	for _, s := range readings {
		f := m.one(s)
		least, most = min(least, f), max(most, f)
	}
	return agreed(least, most)
}

// agreed is the fit of a text whose readings fit at least and at most so well.
func agreed(least, most fit) fit {
	if least == most {
		return least
	}
	return unsure
}

// readingsOf returns what servers may read in a part of a query: percent-encoding decoded, "+" as it is and as a space,
// decoded once more where that changes anything, and ended by a NUL byte. There is one if all read the same.
func readingsOf(raw string) []string {
	out := []string{decodePercent(raw)}
	if strings.Contains(raw, "+") {
		out = append(out, decodePercent(strings.ReplaceAll(raw, "+", " ")))
	}
	for _, s := range out {
		if twice := decodePercent(s); twice != s {
			out = append(out, twice)
		}
		if i := strings.IndexByte(s, 0); i >= 0 {
			out = append(out, s[:i])
		}
	}
	return out
}
