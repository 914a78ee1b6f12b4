package placeholder

import (
	"net/url"
	"strings"
)

// SetQuery returns a request target with a query parameter set: every spelling of it that the target has is removed.
func SetQuery(target, name, value string) string {
	path, query, _ := strings.Cut(target, "?")
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		if pair != "" && !spells(pair, foldParameter(name)) {
			kept = append(kept, pair)
		}
	}
	kept = append(kept, url.QueryEscape(name)+"="+Form.escape(value))
	return path + "?" + strings.Join(kept, "&")
}

// spells reports whether a server may read a parameter of that name in a pair. Some servers also split pairs at
// semicolons.
func spells(pair, folded string) bool {
	for part := range strings.SplitSeq(pair, ";") {
		name, _, _ := strings.Cut(part, "=")
		if foldParameter(name) == folded {
			return true
		}
	}
	return false
}

// foldParameter returns the name of a parameter as the most lenient server sees it: decoded as often as it can be, without
// case; of PHP's names, which have "_" for spaces and dots and an index in brackets, what comes before the index.
func foldParameter(name string) string {
	for range 4 {
		plain := decoded(name)
		if plain == name {
			break
		}
		name = plain
	}
	name = strings.TrimLeft(strings.ToLower(name), " \t\r\n\v\f\x00?")
	if end := strings.IndexAny(name, "[\x00"); end > 0 {
		name = name[:end]
	}
	return strings.NewReplacer(" ", "_", ".", "_").Replace(strings.TrimRight(name, " \t\r\n\v\f"))
}

// decoded decodes the escapes of a name that are valid, and leaves the others.
func decoded(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		switch {
		case name[i] == '+':
			b.WriteByte(' ')
		case name[i] == '%' && i+2 < len(name) && nibble(name[i+1]) >= 0 && nibble(name[i+2]) >= 0:
			b.WriteByte(byte(nibble(name[i+1])<<4 | nibble(name[i+2])))
			i += 2
		default:
			b.WriteByte(name[i])
		}
	}
	return b.String()
}

func nibble(c byte) int { return strings.IndexByte("0123456789abcdef", c|0x20) }
