package placeholder

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"boxgate/policy/name"
)

// A token is tokenPrefix and 160 bits in lower-case base32. Boxes have it instead of a secret. It is recognised by its form, and its bytes need
// no escaping in URLs, JSON or shells.
const (
	tokenPrefix = "bxgph_"
	tokenBytes  = 20
	TokenLen    = len(tokenPrefix) + tokenBytes*8/5 // length of every token
)

const tokenAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

var tokenEncoding = base32.NewEncoding(tokenAlphabet).WithPadding(base32.NoPadding)

// NewToken derives the token of a variable from the key of a box. It cannot be guessed without the key.
func NewToken(key name.Secret, variable string) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(variable))
	return tokenPrefix + tokenEncoding.EncodeToString(mac.Sum(nil)[:tokenBytes])
}

// FindToken returns the position of the first token of any box and variable in s; start is -1 if there is none.
func FindToken(s string) (start, end int) {
	for from := 0; ; {
		i := strings.Index(s[from:], tokenPrefix)
		if i < 0 {
			return -1, -1
		}
		from += i + len(tokenPrefix)
		if isTokenBody(s[from:]) {
			return from - len(tokenPrefix), from - len(tokenPrefix) + TokenLen
		}
	}
}

// FindTokenBytes is [FindToken] for bytes.
func FindTokenBytes(b []byte) (start, end int) {
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte(tokenPrefix))
		if i < 0 {
			return -1, -1
		}
		from += i + len(tokenPrefix)
		if isTokenBody(b[from:]) {
			return from - len(tokenPrefix), from - len(tokenPrefix) + TokenLen
		}
	}
}

func isTokenBody[S []byte | string](s S) bool {
	const n = TokenLen - len(tokenPrefix)
	if len(s) < n {
		return false
	}
	for i := range n {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}
