package match

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Fit is how well a request meets a condition. The zero value is unfit. Of a request that is unsure some server may say
// that it meets the condition, and another that it does not: a rule that denies applies to it, one that allows or sends
// something does not.
type Fit uint8

// The fits, from the worst to the best.
const (
	Unfit Fit = iota
	Unsure
	Fits
)

// maxMatchedText is the length of the longest text that regular expressions are tried on. Of a longer one the fit is
// unsure. It bounds the time that one takes.
const maxMatchedText = 4096

// effort is what comparing one request with all the matchers of its host may still cost: a step is about what a regular
// expression takes for a byte and an instruction. Many rules and a large request would else keep a processor busy for seconds.
type effort struct{ left int }

// fullEffort is some hundred times what ordinary requests need, and some 20 ms.
const fullEffort = 8 << 20

// Steps of an operation for each byte.
const (
	compareSteps = 1 // comparing texts without regard to case
	splitSteps   = 8 // taking a query or head apart, and decoding
)

// nameSteps is what remembering a name takes, besides its bytes.
const nameSteps = 64

// spend reports whether there are so many steps left. If not, the fit is unsure.
func (e *effort) spend(steps int) bool {
	if e.left < steps {
		e.left = 0 // of what comes after it nothing is looked at, however small
		return false
	}
	e.left -= steps
	return true
}

// textMatcher is a [Matcher] ready to compare.
type textMatcher struct {
	exact, any   bool // any: the empty prefix
	text, folded string
	re, foldedRE *regexp.Regexp // of a regex, and the same without regard to case
	size         int            // instructions of foldedRE
}

// one compares one reading of a text. What differs in case alone is unsure: some servers ignore case.
func (m *textMatcher) one(s string, e *effort) Fit {
	switch {
	case m.any:
		return Fits
	case m.re != nil:
		return m.regex(s, e)
	case !e.spend(compareSteps * len(s)):
		return Unsure
	case m.exact:
		switch {
		case s == m.text:
			return Fits
		case strings.EqualFold(s, m.text) || strings.ToLower(s) == m.folded:
			return Unsure
		}
	case strings.HasPrefix(s, m.text):
		return Fits
	case strings.HasPrefix(strings.ToLower(s), m.folded):
		return Unsure
	}
	return Unfit
}

func (m *textMatcher) regex(s string, e *effort) Fit {
	switch {
	case len(s) > maxMatchedText, !e.spend(2 * m.size * (len(s) + 1)):
		return Unsure
	case m.re.MatchString(s):
		if !utf8.ValidString(s) {
			return Unsure
		}
		return Fits
	case m.foldedRE.MatchString(s):
		return Unsure
	}
	return Unfit
}

// all compares every reading of a text.
func (m *textMatcher) all(readings []string, e *effort) Fit {
	least, most := Fits, Unfit
	for _, s := range readings {
		f := m.one(s, e)
		least, most = min(least, f), max(most, f)
	}
	return agreed(least, most)
}

// agreed is the fit of a text whose readings fit at least and at most so well.
func agreed(least, most Fit) Fit {
	if least == most {
		return least
	}
	return Unsure
}

// readingsOf returns what servers may read in a part of a query: percent-encoding decoded, "+" as it is and as a space,
// decoded once more where that changes anything, with the %u0061 of old ones, and ended by a NUL byte. There is one if all read
// the same.
func readingsOf(raw string) []string {
	out := []string{decodePercent(raw)}
	if old := decodeOld(raw); old != raw {
		out = append(out, decodePercent(old))
	}
	if strings.Contains(raw, "+") {
		out = append(out, decodePercent(strings.ReplaceAll(raw, "+", " ")))
	}
	for _, s := range out {
		if twice := decodePercent(decodeOld(s)); twice != s {
			out = append(out, twice)
		}
		if i := strings.IndexByte(s, 0); i >= 0 {
			out = append(out, s[:i])
		}
	}
	return out
}

// OldEscape returns where in a part of a query the first escape such as %uFF41 is, of a character that is not ASCII; -1 without
// one. Servers that read those (IIS) make of it what is most like it in their own character set, such as the "a" of a full-width
// one: what they read cannot be told from here.
func OldEscape(s string) int {
	for at := 0; ; at++ {
		i := strings.IndexByte(s[at:], '%')
		if i < 0 {
			return -1
		}
		if at += i; len(s)-at >= 6 && s[at+1]|0x20 == 'u' {
			if c, err := strconv.ParseUint(s[at+2:at+6], 16, 16); err == nil && c >= utf8.RuneSelf {
				return at
			}
		}
	}
}

// hasOldEscape reports whether there is an [OldEscape], as sent or behind another escape.
func hasOldEscape(raw string) bool {
	return strings.Contains(raw, "%") && (OldEscape(raw) >= 0 || OldEscape(decodePercent(raw)) >= 0)
}

// decodeOld decodes escapes such as %u0061, which IIS and others read: only those of ASCII characters, other than the percent
// sign, which would begin another escape.
func decodeOld(s string) string {
	if !strings.Contains(s, "%u00") && !strings.Contains(s, "%U00") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if rest := s[i:]; len(rest) >= 6 && rest[0] == '%' && rest[1]|0x20 == 'u' {
			if c, err := strconv.ParseUint(rest[2:6], 16, 16); err == nil && c < utf8.RuneSelf && c != '%' {
				b.WriteByte(byte(c))
				i += 5
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
