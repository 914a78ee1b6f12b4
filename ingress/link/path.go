package link

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// Canonical returns a path, as it is sent, in its decoded form. It refuses one that two programs could take for different
// paths: with dot segments, empty segments, backslashes, encoded slashes, control bytes, what decodes to another escape, or what is
// no UTF-8.
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

// plain reports whether a decoded segment means the same to all programs. Some leave out what follows a semicolon.
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

// Escape returns a canonical path as it is sent.
func Escape(canonical string) string {
	segments := strings.Split(canonical, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return strings.Join(segments, "/")
}
