package exchange

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/origin"
)

// identities are the client certificates of rules as they were last parsed. The zero value is empty. There are no more
// than the configuration has pairs of secrets. Safe for concurrent use.
type identities struct {
	mu   sync.Mutex
	last map[policy.ClientCertificate]parsed
}

// parsed is an identity with the values that it was made of.
type parsed struct {
	certificate, key name.Secret
	identity         *origin.Identity
}

var errExpired = errors.New("the certificate has expired")

// identity returns the client certificate that a rule has requests sent with, nil if it has none.
func (k *Core) identity(ctx context.Context, c *policy.ClientCertificate) (*origin.Identity, error) {
	if c == nil {
		return nil, nil
	}
	certificate, err := k.document(ctx, c.Certificate)
	if err != nil {
		return nil, err
	}
	key, err := k.document(ctx, c.Key)
	if err != nil {
		return nil, err
	}
	identity, err := k.identities.of(*c, certificate, key)
	if err == nil && identity.Expired(fault.Now()) {
		err = errExpired
	}
	if err != nil {
		return nil, fmt.Errorf("secret %q: %w", c.Certificate, err)
	}
	return identity, nil
}

// of returns the identity that two values make.
func (i *identities) of(c policy.ClientCertificate, certificate, key name.Secret) (*origin.Identity, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if last, ok := i.last[c]; ok && last.certificate.Equal(certificate) && last.key.Equal(key) {
		return last.identity, nil
	}
	identity, err := origin.NewIdentity(certificate.Reveal(), key.Reveal())
	if err != nil {
		delete(i.last, c)
		return nil, err
	}
	if i.last == nil {
		i.last = map[policy.ClientCertificate]parsed{}
	}
	i.last[c] = parsed{certificate, key, identity}
	return identity, nil
}

// document returns the value of a secret that need not be valid in a header.
func (k *Core) document(ctx context.Context, n string) (name.Secret, error) {
	if k.Secrets == nil {
		return name.Secret{}, fmt.Errorf("secret %q: %w", n, errNoSecrets)
	}
	s, err := k.Secrets.Secret(ctx, n)
	if err != nil {
		return name.Secret{}, fmt.Errorf("secret %q: %w", n, err)
	}
	return s, nil
}
