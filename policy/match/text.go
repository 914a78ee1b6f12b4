package match

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Fit is how certainly a request meets a condition. The zero value is unfit. An unsure request meets the condition for some servers
// and not for others: rules that deny apply to it, rules that allow or send secrets do not.
type Fit uint8

// The fits, from the worst to the best.
const (
	Unfit Fit = iota
	Unsure
	Fits
)

// maxMatchedText is the length of the longest text that is compared with regular expressions, which bounds their time. The fit of
// longer texts is unsure.
const maxMatchedText = 4096

// effort is the remaining budget for comparing one request with all matchers of its host. A step is about the time of a regular
// expression for a byte and an instruction. Without the budget, a large request and many rules would take seconds of CPU time.
type effort struct{ left int }

// fullEffort is about 20 ms, and a hundred times the effort of ordinary requests.
const fullEffort = 8 << 20

// Steps of an operation for each byte.
const (
	compareSteps = 1 // comparing texts ignoring case
	splitSteps   = 8 // taking a query or head apart, and decoding
)

// nameSteps is the effort of remembering a name, in addition to its bytes.
const nameSteps = 64

// spend takes steps from the budget. If it reports false, the budget is exceeded and the fit is unsure.
func (e *effort) spend(steps int) bool {
	if e.left < steps {
		e.left = 0 // later comparisons fail as well, however small
		return false
	}
	e.left -= steps
	return true
}

// textMatcher is a compiled [Matcher].
type textMatcher struct {
	exact, any   bool // any: the empty prefix
	text, folded string
	re, foldedRE *regexp.Regexp // of a regex, as written and ignoring case
	size         int            // instructions of foldedRE
}

// one compares one reading of a text. A difference in case only is unsure: some servers ignore case.
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

// agreed returns the fit of a text, given the worst and the best fit of its readings.
func agreed(least, most Fit) Fit {
	if least == most {
		return least
	}
	return Unsure
}

// readingsOf returns the possible interpretations of a part of a query by servers: percent-encoding decoded, with "+" unchanged and as
// a space, decoded twice, with escapes such as %u0061 decoded, and cut at a NUL byte. Equal ones are returned
// once.
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

// OldEscape returns the position of the first escape such as %uFF41 of a character outside ASCII in a part of a query, or -1. Servers
// that decode those (IIS) replace the character by a similar one of their own character set, such as a full-width "a" by "a". The
// result is unpredictable here.
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

// hasOldEscape reports whether there is an [OldEscape], as sent or after decoding.
func hasOldEscape(raw string) bool {
	return strings.Contains(raw, "%") && (OldEscape(raw) >= 0 || OldEscape(decodePercent(raw)) >= 0)
}

// decodeOld decodes escapes such as %u0061, as IIS and others do, of ASCII characters except the percent sign, which would begin
// another escape.
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
