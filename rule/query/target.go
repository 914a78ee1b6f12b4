package query

import (
	"net/url"
	"strings"

	"boxgate/policy/match"
)

// remove returns a request target without a query parameter, in every spelling that some server may accept. The rest is
// unchanged byte for byte. own are the removed pairs that are spelled like the parameter.
func remove(target, name string) (rest string, own []string) {
	path, query, found := strings.Cut(target, "?")
	if !found {
		return target, nil
	}
	folded := foldParameter(name)
	var kept strings.Builder
	for separator := ""; query != ""; { // all servers separate parameters at "&", some at ";" as well
		pair, next, rest := query, "", ""
		if i := strings.IndexAny(query, "&;"); i >= 0 {
			pair, next, rest = query[:i], query[i:i+1], query[i+1:]
		}
		spelled, _, _ := strings.Cut(pair, "=")
		switch {
		case foldParameter(spelled) != folded && !mayFold(spelled, folded):
			kept.WriteString(separator + pair)
		case decoded(spelled) == name:
			own = append(own, pair)
		}
		query, separator = rest, next
	}
	return path + "?" + strings.TrimLeft(kept.String(), "&;"), own
}

// add returns a request target with a parameter added to its query.
func add(target, name, value string) string {
	pair := url.QueryEscape(name) + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20") // which means the same in a form
	switch path, query, found := strings.Cut(target, "?"); {
	case !found:
		return target + "?" + pair
	case query == "":
		return path + "?" + pair
	}
	return target + "&" + pair
}

// mayFold reports whether a name has an escape such as %uFF41 and may begin like a folded name. Servers that accept such escapes map the
// character to their own character set: it, and the rest of the name, may become anything.
func mayFold(name, folded string) bool {
	for range 4 {
		if i := match.OldEscape(name); i >= 0 {
			return strings.HasPrefix(folded, foldParameter(name[:i]))
		}
		plain := decoded(name)
		if plain == name {
			break
		}
		name = plain
	}
	return false
}

// foldParameter returns the name of a parameter as the most lenient server reads it: decoded repeatedly, in lower case, and as PHP does
// with "_" for spaces and dots and without an index in brackets.
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

// decoded decodes the escapes of a name that are valid, those of IIS such as %u0061 as well, and leaves the others.
func decoded(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		switch {
		case name[i] == '+':
			b.WriteByte(' ')
		case name[i] == '%' && i+2 < len(name) && nibble(name[i+1]) >= 0 && nibble(name[i+2]) >= 0:
			b.WriteByte(byte(nibble(name[i+1])<<4 | nibble(name[i+2])))
			i += 2
		case strings.HasPrefix(name[i:], "%u00"), strings.HasPrefix(name[i:], "%U00"):
			if c, ok := oldByte(name[i:]); ok {
				b.WriteByte(c)
				i += 5
				continue
			}
			b.WriteByte(name[i])
		default:
			b.WriteByte(name[i])
		}
	}
	return b.String()
}

// oldByte decodes an escape of an ASCII character such as %u0061 at the beginning of a text.
func oldByte(s string) (c byte, ok bool) {
	if len(s) < 6 || nibble(s[4]) < 0 || nibble(s[5]) < 0 {
		return 0, false
	}
	c = byte(nibble(s[4])<<4 | nibble(s[5]))
	return c, c < 0x80
}

func nibble(c byte) int { return strings.IndexByte("0123456789abcdef", c|0x20) }
