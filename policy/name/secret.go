package name

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Secret is a value that must not be shown. Its fmt, JSON, YAML, text, gob, slog and zap encodings are "[redacted]".
// Reveal returns the value. Call it only to send the value upstream or to encrypt it for the store. The zero Secret is the
// empty value. A Secret cannot be decoded: use [NewSecret].
type Secret struct {
	// h is a pointer because fmt prints unexported fields without calling their methods. Of a pointer it prints the address.
	h *hidden
}

// hidden keeps the value in a closure, which reflection cannot read: printers that follow pointers print the address of the
// function.
type hidden struct{ reveal func() string }

const redacted = "[redacted]"

// NewSecret wraps a value.
func NewSecret(v string) Secret { return Secret{h: &hidden{reveal: func() string { return v }}} }

// Reveal returns the value.
func (s Secret) Reveal() string {
	if s.h == nil {
		return ""
	}
	return s.h.reveal()
}

// Equal reports whether two secrets have the same value, in constant time for values of the same length.
func (s Secret) Equal(o Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(o.Reveal())) == 1
}

// Format writes "[redacted]" for every verb and flag.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String returns "[redacted]".
func (s Secret) String() string { return redacted }

// GoString returns "[redacted]".
func (s Secret) GoString() string { return redacted }

// MarshalText returns "[redacted]".
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "[redacted]" as a JSON string.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// GobEncode returns "[redacted]".
func (s Secret) GobEncode() ([]byte, error) { return []byte(redacted), nil }

// LogValue returns "[redacted]" for log/slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// IsSecretName reports whether s is a valid name of a secret: 1 to 64 letters, digits, '.', '_' and '-', the
// first a letter or digit.
func IsSecretName(s string) bool {
	if s == "" || len(s) > 64 || strings.IndexByte("._-", s[0]) >= 0 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !IsWordByte(c) && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// keySecretSeparator is between the parts of the ID of a secret of an API key. No name of a secret has it.
const keySecretSeparator = ":"

// KeySecret returns the ID of a secret of an API key, from the key's ID and the secret's name: "key_0123456789abcdef:openai".
func KeySecret(key, n string) string { return key + keySecretSeparator + n }

// SplitKeySecret splits the ID of a secret of an API key; ok is false for any other text.
func SplitKeySecret(s string) (key, n string, ok bool) {
	key, n, ok = strings.Cut(s, keySecretSeparator)
	if !ok || !IsSecretName(key) || !IsSecretName(n) {
		return "", "", false
	}
	return key, n, true
}

// IsKeySecret reports whether s is the ID of a secret of an API key.
func IsKeySecret(s string) bool {
	_, _, ok := SplitKeySecret(s)
	return ok
}

// ShownSecretName returns an invalid name of a secret for an error message, up to the first invalid character. The rest is
// often the value, as in YAML's {value:…} with a missing space.
func ShownSecretName(n string) string {
	return Shown(n, func(c byte) bool { return IsWordByte(c) || c == '.' || c == '-' })
}
