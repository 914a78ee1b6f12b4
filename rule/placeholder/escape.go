package placeholder

import "strings"

// escapeWindow is the number of bytes before a token that are searched for an escape, which may be escaped itself.
const escapeWindow = 24

// escaped decodes escaped characters that begin an escape.
var escaped = strings.NewReplacer("%25", "%", "%5c", `\`, "%5C", `\`)

// inEscape reports whether a text ends within an escape of a URL (%4, %u00) or of JSON (\, \u00, \x4). The server would read the first bytes
// of a value after it as part of the escape. Masking would not find the remaining bytes in the response.
func inEscape(before string) bool {
	before = before[max(0, len(before)-escapeWindow):]
	for range 3 {
		before = escaped.Replace(before)
	}
	i := strings.LastIndexAny(before, `%\`)
	if i < 0 {
		return false
	}
	digits, rest := 2, before[i+1:]
	switch {
	case rest == "":
		return true
	case rest[0]|0x20 == 'u':
		digits, rest = 4, rest[1:]
	case before[i] == '\\' && rest[0]|0x20 == 'x':
		rest = rest[1:]
	case before[i] == '\\':
		return false
	}
	return len(rest) < digits && !strings.ContainsFunc(rest, func(c rune) bool { return c >= 0x80 || nibble(byte(c)) < 0 })
}

func nibble(c byte) int { return strings.IndexByte("0123456789abcdef", c|0x20) }
