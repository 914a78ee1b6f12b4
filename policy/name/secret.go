package name

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Secret is a value that must not be shown. Its fmt, JSON, YAML, text, gob, slog and zap encodings are "[redacted]";
// Reveal returns the value itself and is called only where it is written to the upstream or encrypted for the store.
// The zero Secret is the empty value. It cannot be decoded: code that reads a secret calls [NewSecret].
type Secret struct {
	// h is a pointer because fmt prints the contents of unexported fields without calling their methods: it prints an
	// address there.
	h *hidden
}

// hidden keeps the value where reflection does not find it: printers that follow pointers end at the address of a
// function.
type hidden struct{ reveal func() string }

const redacted = "[redacted]"

// NewSecret wraps a value.
func NewSecret(v string) Secret { return Secret{h: &hidden{reveal: func() string { return v }}} }

// Reveal returns the value itself.
func (s Secret) Reveal() string {
	if s.h == nil {
		return ""
	}
	return s.h.reveal()
}

// Equal reports whether two secrets hold the same value, in time that does not depend on where they differ.
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

// IsSecretName reports whether s may name a secret of the operator: 1 to 64 letters, digits, '.', '_' and '-', the
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

// ShownSecretName returns what was given as the name of a secret as an error may show it: up to the first character
// that is not valid in one. What follows is often the value, as in YAML's {value:…}, where a space is missing.
func ShownSecretName(n string) string {
	return Shown(n, func(c byte) bool { return IsWordByte(c) || c == '.' || c == '-' })
}
