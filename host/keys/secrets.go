package keys

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/policy/name"
	"boxgate/secrets"
	"boxgate/secrets/identity"
)

// Secrets shows and refreshes the operator's secrets, and shows the public keys of identity tokens.
type Secrets struct {
	log     *zap.Logger
	secrets *secrets.Secrets
	tokens  *identity.Issuer
}

// NewSecrets returns the service.
func NewSecrets(log *zap.Logger, s *secrets.Secrets, tokens *identity.Issuer) *Secrets {
	return &Secrets{log, s, tokens}
}

// IdentityKeys implements the Secrets of [boxgate/api/gateway].
func (s *Secrets) IdentityKeys(context.Context) (json.RawMessage, error) { return s.tokens.KeySet() }

// Secrets implements the Secrets of [boxgate/api/gateway].
func (s *Secrets) Secrets(context.Context) ([]api.SecretStatus, error) {
	var out []api.SecretStatus
	for _, st := range s.secrets.Status() {
		shown := api.SecretStatus{Name: st.Name, Source: st.Source, Valid: st.Valid, Stale: st.Stale, Read: st.Read, Expires: st.Expires}
		if st.Err != nil {
			shown.Error = st.Err.Error()
		}
		out = append(out, shown)
	}
	return out, nil
}

// RefreshSecret implements the Secrets of [boxgate/api/gateway]. A failure of the source is part of the returned status,
// not an error.
func (s *Secrets) RefreshSecret(ctx context.Context, n string) (api.SecretStatus, error) {
	if !s.secrets.Has(n) {
		return api.SecretStatus{}, api.Errorf(api.ErrNotFound, "the configuration has no secret %q", name.ShownSecretName(n))
	}
	s.log.Info("a secret is revoked and read again", zap.String("secret", n))
	if err := s.secrets.Refresh(ctx, n); errors.Is(err, secrets.ErrStatic) || errors.Is(err, secrets.ErrBusy) {
		return api.SecretStatus{}, api.Errorf(api.ErrConflict, "secret %q: %w", n, err)
	}
	list, err := s.Secrets(ctx)
	i := slices.IndexFunc(list, func(st api.SecretStatus) bool { return st.Name == n })
	if err != nil || i < 0 {
		return api.SecretStatus{}, errors.Join(err, errors.New("the secret has no status"))
	}
	return list[i], nil
}
