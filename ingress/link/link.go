// Package link signs and verifies URLs that allow some methods on some paths of one public URL, until a time. The
// permission is in the signature; no state is stored. Pure: the clock is a parameter.
package link

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"boxgate/ingress/access"
)

// Methods are the methods that a link can permit.
var Methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// Link is the permission in a signed URL. The zero Link permits nothing.
type Link struct {
	Expires time.Time
	Prefix  string   // canonical, as returned by [Canonical]: the path itself, and all below it
	Methods []string // some of Methods
}

const (
	version = 1
	head    = 1 + 1 + 8
	longest = 4 << 10 // of a signature
)

// Sign returns the signature of a link for an incarnation of a URL, whose key for links is k.
func Sign(k access.Key, url string, l Link) string {
	b := []byte{version, 0}
	for i, m := range Methods {
		if slices.Contains(l.Methods, m) {
			b[1] |= 1 << i
		}
	}
	b = binary.BigEndian.AppendUint64(b, uint64(l.Expires.Unix()))
	b = append(b, l.Prefix...)
	return base64.RawURLEncoding.EncodeToString(append(b, k.MAC(url, b)...))
}

// Open returns the link in a signature if the key signed it for this URL, even if it has expired.
func Open(k access.Key, url, signature string) (Link, bool) {
	if len(signature) > longest {
		return Link{}, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(signature)
	if err != nil || len(b) < head+sha256.Size {
		return Link{}, false
	}
	b, mac := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if !k.Verify(url, b, mac) || b[0] != version {
		return Link{}, false
	}
	l := Link{Expires: time.Unix(int64(binary.BigEndian.Uint64(b[2:])), 0), Prefix: string(b[head:])}
	for i, m := range Methods {
		if b[1]&(1<<i) != 0 {
			l.Methods = append(l.Methods, m)
		}
	}
	return l, true
}

// Permits reports whether a request is allowed at a time. path is as received.
func (l Link) Permits(method, path string, now time.Time) bool {
	canonical, ok := Canonical(path)
	if !ok || l.Prefix == "" || !now.Before(l.Expires) || !slices.Contains(l.Methods, method) {
		return false
	}
	rest, ok := strings.CutPrefix(canonical, l.Prefix)
	return ok && (rest == "" || strings.HasSuffix(l.Prefix, "/") || rest[0] == '/')
}

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
