package link

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// Canonical returns a received path in its decoded form. It rejects paths that two programs could interpret differently:
// with dot segments, empty segments, backslashes, encoded slashes, control bytes, double escapes, or invalid UTF-8.
func Canonical(path string) (string, bool) {
	if !strings.HasPrefix(path, "/") {
		return "", false
	}
	segments := strings.Split(path[1:], "/")
	for i, s := range segments {
		decoded, err := url.PathUnescape(s)
		if err != nil || !plain(decoded) || decoded == "" && i < len(segments)-1 {
			return "", false
		}
		segments[i] = decoded
	}
	return "/" + strings.Join(segments, "/"), true
}

// plain reports whether all programs interpret a decoded segment alike. Some drop everything after a semicolon.
func plain(segment string) bool {
	name, _, _ := strings.Cut(segment, ";")
	if strings.Trim(name, ". ") == "" && segment != "" {
		return false
	}
	for _, r := range segment {
		if r < ' ' || r == 0x7f || strings.ContainsRune(`/\%?#`, r) {
			return false
		}
	}
	return utf8.ValidString(segment)
}

// Escape returns a canonical path in escaped form.
func Escape(canonical string) string {
	segments := strings.Split(canonical, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return strings.Join(segments, "/")
}
