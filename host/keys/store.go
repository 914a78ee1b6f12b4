package keys

import (
	"context"
	"errors"
	"io"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/store"
)

// RotateStoreKey implements the Store of [boxgate/api/gateway].
func (k *Service) RotateStoreKey(_ context.Context, newPassphrase name.Secret) error {
	if err := CheckPassphrase(newPassphrase); err != nil {
		return &document.InvalidError{Problems: []document.Problem{{Pointer: "/new_passphrase", Message: err.Error()}}}
	}
	err := k.store.RotateKey(newPassphrase)
	if errors.Is(err, store.ErrPassphrase) {
		return &document.InvalidError{Problems: []document.Problem{{Pointer: "/new_passphrase", Message: err.Error()}}}
	}
	if err != nil {
		return api.Errorf(api.ErrUnavailable, "the key of the store was only partly changed: %w", err)
	}
	k.log.Info("the secrets of the store are sealed with a new key", zap.Bool("passphrase", newPassphrase.Reveal() != ""))
	return nil
}

// RotateAPIKey implements the Store of [boxgate/api/gateway].
func (k *Service) RotateAPIKey(_ context.Context, grace time.Duration) error {
	if err := k.keys.Rotate(grace); err != nil {
		return api.Errorf(api.ErrUnavailable, "the API key was only partly replaced: %w", err)
	}
	k.changed()
	k.log.Info("there is a new API key", zap.Duration("grace_of_old_keys", grace))
	return nil
}

// BackupStore implements the Store of [boxgate/api/gateway].
func (k *Service) BackupStore(_ context.Context, w io.Writer) error {
	n, err := k.store.Backup(w)
	if err != nil {
		return change.NotStored(k.log, "the store could not be copied", err)
	}
	k.log.Info("the store was backed up", zap.Int64("bytes", n))
	return nil
}

// VerifyStore implements the Store of [boxgate/api/gateway].
func (k *Service) VerifyStore(context.Context) (api.StoreReport, error) {
	r, err := k.store.Verify()
	return api.StoreReport{Documents: r.Documents, Problems: r.Problems}, err
}

// CheckPassphrase returns an error for a passphrase that is too short or too long. An empty one passes; the caller
// decides whether that is allowed.
func CheckPassphrase(p name.Secret) error {
	switch n := len(p.Reveal()); {
	case n > 0 && n < 8:
		return errors.New("the new passphrase is too short; use 8 bytes or more")
	case n > 1024:
		return errors.New("the new passphrase is too long; use 1024 bytes or less")
	}
	return nil
}
