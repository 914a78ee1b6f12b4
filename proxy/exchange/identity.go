package exchange

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"boxgate/internal/fault"
	"boxgate/policy/name"
	"boxgate/proxy/origin"
	"boxgate/rule"
)

// identities caches the parsed client certificates of rules. The zero value is empty. Its size is limited by the pairs of
// secrets in the configuration. Safe for concurrent use.
type identities struct {
	mu   sync.Mutex
	last map[rule.Identity]parsedIdentity
}

// parsedIdentity is an identity with the values from which it was parsed.
type parsedIdentity struct {
	certificate, key name.Secret
	identity         *origin.Identity
}

var errExpired = errors.New("the certificate has expired")

// identity returns the client certificate of a rule, or nil if it has none.
func (k *Core) identity(ctx context.Context, of rule.Identity) (*origin.Identity, error) {
	if of == nil {
		return nil, nil
	}
	certificate, err := k.document(ctx, of.CertificateSource())
	if err != nil {
		return nil, err
	}
	key, err := k.document(ctx, of.KeySource())
	if err != nil {
		return nil, err
	}
	identity, err := k.identities.get(of, certificate, key)
	if err == nil && identity.Expired(fault.Now()) {
		err = errExpired
	}
	if err != nil {
		return nil, fmt.Errorf("secret %q: %w", of.CertificateSource(), err)
	}
	return identity, nil
}

// get returns the identity for two values, parsed or from the cache.
func (i *identities) get(effect rule.Identity, certificate, key name.Secret) (*origin.Identity, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if last, ok := i.last[effect]; ok && last.certificate.Equal(certificate) && last.key.Equal(key) {
		return last.identity, nil
	}
	pair, err := effect.Certificate(certificate, key)
	if err != nil {
		delete(i.last, effect)
		return nil, err
	}
	if i.last == nil {
		i.last = map[rule.Identity]parsedIdentity{}
	}
	identity := origin.NewIdentity(pair, certificate, key)
	i.last[effect] = parsedIdentity{certificate, key, identity}
	return identity, nil
}

// document returns the value of a secret that need not be a valid header value.
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
