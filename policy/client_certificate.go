package policy

import (
	"slices"

	"boxgate/policy/document"
)

// ClientCertificate names the secrets of the configuration by which the gateway authenticates to a host in the TLS
// handshake. Both are PEM. They may be the same secret, which then holds the certificate, its chain and the key.
type ClientCertificate struct {
	Certificate string // the certificate, followed by intermediate ones
	Key         string
}

// Sources returns the names of the secrets.
func (c *ClientCertificate) Sources() []string {
	if c == nil {
		return nil
	}
	return slices.Compact([]string{c.Certificate, c.Key})
}

// written returns the JSON that is read as c.
func (c *ClientCertificate) written() any {
	secret := func(name string) map[string]any { return map[string]any{"secret": name} }
	switch {
	case c == nil:
		return nil
	case c.Certificate == c.Key:
		return secret(c.Key)
	default:
		return map[string]any{"certificate": secret(c.Certificate), "key": secret(c.Key)}
	}
}

// clientCertificate reads {"secret": name} or {"certificate": {"secret": name}, "key": {"secret": name}}.
func (p *headerParser) clientCertificate(at string, v document.Value) *ClientCertificate {
	var c ClientCertificate
	both := ""
	part := func(to *string) func(string, document.Value) {
		return func(at string, v document.Value) {
			v.Fields(at, `{"secret": name}`, &p.Problems, map[string]func(string, document.Value){
				"secret": func(at string, v document.Value) { *to = p.Source(at, v) },
			})
			if v.Kind == document.Object && !v.Has("secret") {
				p.Add(at, `has no "secret"`)
			}
		}
	}
	v.Fields(at, "an object with secret, or with certificate and key", &p.Problems, map[string]func(string, document.Value){
		"secret":      func(at string, v document.Value) { both = p.Source(at, v) },
		"certificate": part(&c.Certificate),
		"key":         part(&c.Key),
	})
	switch {
	case v.Kind != document.Object:
	case v.Has("secret") && (v.Has("certificate") || v.Has("key")):
		p.Add(at, `has "secret" beside "certificate" or "key"; give one secret that holds both, or two`)
	case v.Has("secret"):
		return &ClientCertificate{both, both}
	case !v.Has("certificate") || !v.Has("key"):
		p.Add(at, `needs "secret", or "certificate" and "key"`)
	}
	return &c
}
