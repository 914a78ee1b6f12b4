package policy

// Header is one header that the gateway sets on a matching request.
type Header struct {
	Name  string // canonical form (textproto.CanonicalMIMEHeaderKey); HTTP/2 sends it in lower case
	Value Secret
}

// HeaderRule sets headers on the HTTPS requests of the hosts its pattern covers (port 443 if the pattern gives none).
type HeaderRule struct {
	Pattern Pattern
	Headers []Header
}

// Secret is a value that must not be seen. Its fmt, JSON and text encodings are "[redacted]"; Reveal returns the value
// itself and is called only where it is written to the upstream or encrypted for the store.
type Secret struct{ v string }

// NewSecret wraps a value.
func NewSecret(v string) Secret { return Secret{v: v} }

// Reveal returns the value itself.
func (s Secret) Reveal() string { return s.v }
