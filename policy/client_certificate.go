package policy

import "slices"

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
