package exchange

import (
	"context"

	"boxgate/policy/name"
)

// Credential is a value for logging in on a connection. The zero value is a literal.
type Credential struct {
	core          *Core
	source        string
	revokedBefore uint64
}

// Credential returns the value of a secret of the configuration for a connection that is about to be logged in, and a
// Credential for checking later whether it was revoked.
func (k *Core) Credential(ctx context.Context, source string) (name.Secret, Credential, error) {
	c := Credential{k, source, k.Revoked.count.Load()}
	v, err := k.fetch(ctx, source)
	if err != nil {
		return name.Secret{}, c, err
	}
	k.Revoked.markUsed([]string{source})
	return name.NewSecret(v), c, nil
}

// Revoked reports whether the value was revoked after it was fetched.
func (c Credential) Revoked() bool {
	return c.core != nil && c.core.Revoked.since(c.revokedBefore, []string{c.source})
}
