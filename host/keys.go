package host

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/handover"
	"boxgate/policy/document"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// keys changes the key of the store and the API key.
type keys struct {
	before *handover.Predecessor
	turn   *adminTurn
	log    *zap.Logger
	store  *store.DB
	quotas *quotas.Book

	settingQuotas sync.Mutex // one change at a time reads what it changes
}

// RotateStoreKey implements the Store of [boxgate/api/gateway].
func (k *keys) RotateStoreKey(_ context.Context, newPassphrase name.Secret) error {
	if err := CheckPassphrase(newPassphrase); err != nil {
		return &document.InvalidError{Problems: []document.Problem{{Pointer: "/new_passphrase", Message: err.Error()}}}
	}
	err := k.store.RotateKey(newPassphrase)
	if errors.Is(err, store.ErrPassphrase) {
		return &document.InvalidError{Problems: []document.Problem{{Pointer: "/new_passphrase", Message: err.Error()}}}
	}
	if err != nil {
		return api.Errorf(api.ErrUnavailable, "the key of the store was not fully changed: %w", err)
	}
	k.log.Info("the secrets of the store are sealed with a new key", zap.Bool("passphrase", newPassphrase.Reveal() != ""))
	return nil
}

// RotateAPIKey implements the Store of [boxgate/api/gateway].
func (k *keys) RotateAPIKey(_ context.Context, grace time.Duration) error {
	if err := k.store.RotateAPIKey(grace); err != nil {
		return api.Errorf(api.ErrUnavailable, "the API key was not fully replaced: %w", err)
	}
	k.changed()
	k.log.Info("there is a new API key", zap.Duration("grace_of_old_keys", grace))
	return nil
}

// BackupStore implements the Store of [boxgate/api/gateway].
func (k *keys) BackupStore(_ context.Context, w io.Writer) error {
	n, err := k.store.Backup(w)
	if err != nil {
		return change.NotStored(k.log, "the store could not be copied", err)
	}
	k.log.Info("the store was backed up", zap.Int64("bytes", n))
	return nil
}

// VerifyStore implements the Store of [boxgate/api/gateway].
func (k *keys) VerifyStore(context.Context) (api.StoreReport, error) {
	r, err := k.store.Verify()
	return api.StoreReport{Documents: r.Documents, Problems: r.Problems}, err
}

// changed makes the predecessor, and a process that takes the place of this one, look anew at the keys of open requests.
func (k *keys) changed() {
	k.turn.forgetKeys()
	k.before.Tell(handover.Message{Kind: handover.Keys})
}

// CheckPassphrase refuses passphrases that are too short or too long; whether one is needed is for others to decide.
func CheckPassphrase(p name.Secret) error {
	switch n := len(p.Reveal()); {
	case n > 0 && n < 8:
		return errors.New("the new passphrase is too short; use 8 bytes or more")
	case n > 1024:
		return errors.New("the new passphrase is too long; use 1024 bytes or less")
	}
	return nil
}
