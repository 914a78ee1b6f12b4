// Package keys manages the API keys and their quotas: [Service] creates, replaces and revokes keys, and [Holdings] counts
// the objects made with them. The service also rotates the key of the store, and backs up and verifies the store.
package keys

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/internal/required"
	"boxgate/llm"
	"boxgate/policy/document"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/secrets"
	"boxgate/secrets/identity"
	"boxgate/store"
)

// Store is the store as a whole; implemented by [store.DB].
type Store interface {
	RotateKey(newPassphrase name.Secret) error
	Backup(w io.Writer) (int64, error)
	Verify() (store.VerifyReport, error)
}

// Models has the limits of models of API keys; implemented by [boxgate/host/models].
type Models interface {
	SetKey(store.APIKey)
	RemoveKey(id string)
	// Key returns the use of models by the boxes that a key has made.
	Key(id string) api.ModelUsage
}

// Config configures a [Service].
type Config struct {
	Log    *zap.Logger
	Store  Store
	Keys   store.Keys
	Quotas *quotas.Book
	Models Models
	// Changed is called with the ID of a key that was replaced or revoked, or lost a public key, so that its open requests are checked again.
	Changed func(id string)
	Fleet   Fleet `required:"false"` // nil: this host is not a member of a fleet
}

// Service manages the API keys, rotates the key of the store, and backs up and verifies the store. Safe for concurrent
// use.
type Service struct {
	log     *zap.Logger
	store   Store
	keys    store.Keys
	quotas  *quotas.Book
	models  Models
	changed func(id string)
	fleet   Fleet // nil: no member of a fleet

	settingQuotas sync.Mutex      // serialises read-modify-write of quotas
	revoked       map[string]bool // IDs of revoked keys whose quotas the book has; guarded by settingQuotas

	ssh    sshIndex
	owners owners
}

// New returns the service, and loads the quotas of API keys into the book.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	k := &Service{log: c.Log, store: c.Store, keys: c.Keys, quotas: c.Quotas, models: c.Models, fleet: c.Fleet}
	k.changed = func(id string) {
		k.owners.forget()
		k.indexSSHKeys()
		c.Changed(id)
	}
	if err := k.dropFleet(); err != nil {
		return nil, err
	}
	k.indexSSHKeys()
	return k, k.loadQuotas()
}

// loadQuotas loads the quotas of API keys into the book.
func (k *Service) loadQuotas() error {
	all, err := k.keys.All()
	for _, found := range all {
		k.quotas.Set(CallerOf(found).Holder(), quotas.LimitsFromMap(found.Quotas))
	}
	return errors.Join(err, k.loadRevoked())
}

// loadRevoked loads the quotas of revoked API keys into the book, for the certificates of their public URLs, and removes the
// quotas of keys without URLs.
func (k *Service) loadRevoked() error {
	k.settingQuotas.Lock()
	defer k.settingQuotas.Unlock()
	all, err := k.keys.Revoked()
	if err != nil {
		return err
	}
	loaded := map[string]bool{}
	for _, r := range all {
		loaded[r.ID] = true
		k.quotas.Set(quotas.Holder{Type: quotas.APIKey, ID: r.ID}, quotas.LimitsFromMap(r.Quotas))
	}
	for id := range k.revoked {
		if !loaded[id] {
			k.quotas.Set(quotas.Holder{Type: quotas.APIKey, ID: id}, quotas.Limits{})
		}
	}
	k.revoked = loaded
	return nil
}

// usesInterval is the interval at which the last uses of API keys are stored.
const usesInterval = time.Minute

// LookUp returns the owner and the expiry of the API key with this SHA-256, if it is valid now. A key of the fleet is not valid while this host
// is fenced; then the result has Fleet alone.
func (k *Service) LookUp(hash [sha256.Size]byte) (api.Key, bool) {
	found, ok := k.keys.FindHash(hash)
	if !ok {
		return api.Key{}, false
	}
	if found.Fleet && k.fenced() {
		return api.Key{Caller: api.Caller{Fleet: true}}, false
	}
	k.keys.NoteUse(found)
	return keyView(found), true
}

// CallerOf returns the caller that a key identifies.
func CallerOf(k store.APIKey) api.Caller {
	return api.Caller{Key: k.ID, Name: k.Name, Role: api.Role(k.Role), Box: k.Box, Fleet: k.Fleet}
}

// SaveUses stores the last uses of API keys periodically until ctx is done.
func (k *Service) SaveUses(ctx context.Context) {
	tick := time.NewTicker(usesInterval)
	defer tick.Stop()
	for {
		over := false
		select {
		case <-ctx.Done():
			over = true
		case <-tick.C:
		}
		if err := k.keys.SaveUses(); err != nil {
			k.log.Warn("when API keys were used last could not be stored", zap.Error(err))
		}
		if over {
			return
		}
	}
}

// APIKeys implements the Host of [boxgate/api/keys].
func (k *Service) APIKeys(context.Context) ([]api.Key, error) {
	all, err := k.keys.All()
	if err != nil {
		return nil, err
	}
	views := make([]api.Key, 0, len(all))
	for _, found := range all {
		v := keyView(found)
		v.Uses = k.quotas.Use(v.Holder())
		v.ModelUsage = k.models.Key(found.ID)
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b api.Key) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Key, b.Key))
	})
	return views, nil
}

func keyView(k store.APIKey) api.Key {
	return api.Key{Caller: CallerOf(k), CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, LastUsed: k.LastUsed, Quotas: quotas.LimitsFromMap(k.Quotas), Model: k.Model, SSHKeys: sshKeys(k)}
}

// CreateAPIKey implements the Host of [boxgate/api/keys].
func (k *Service) CreateAPIKey(ctx context.Context, req api.KeyRequest) (name.Secret, api.Key, error) {
	like := store.APIKey{Name: req.Name, Role: string(req.Role), Box: req.Box, Quotas: req.Quotas.Map(), Model: req.Model}
	if req.ExpiresIn > 0 {
		like.ExpiresAt = time.Now().UTC().Add(req.ExpiresIn)
	}
	if err := k.freeName(req.Name); err != nil {
		return name.Secret{}, api.Key{}, err
	}
	key, made, err := k.editor(ctx, k.fleet != nil, false).Create(like)
	switch {
	case errors.Is(err, store.ErrKeyNameTaken):
		return name.Secret{}, api.Key{}, errNameTaken(req.Name)
	case errors.Is(err, store.ErrManyKeys):
		return name.Secret{}, api.Key{}, api.Errorf(api.ErrLimit, "the maximum number of API keys is reached; revoke some")
	case err != nil:
		return name.Secret{}, api.Key{}, k.notStored("the API key could not be stored, nothing was made", err)
	}
	if !made.Fleet {
		k.owners.forget()
		k.quotas.Set(CallerOf(made).Holder(), req.Quotas)
		k.models.SetKey(made)
	}
	k.log.Info("an API key was made", zap.String("key", made.ID), zap.String("name", made.Name), zap.String("role", made.Role))
	return key, keyView(made), nil
}

// findKey finds a key by its ID, or else by its name.
func (k *Service) findKey(idOrName string) (store.APIKey, error) {
	all, err := k.keys.All()
	if err != nil {
		return store.APIKey{}, err
	}
	i := slices.IndexFunc(all, func(a store.APIKey) bool { return a.ID == idOrName })
	if i < 0 {
		i = slices.IndexFunc(all, func(a store.APIKey) bool { return a.Name == idOrName })
		if i >= 0 && slices.ContainsFunc(all, func(a store.APIKey) bool { return a.Name == idOrName && a.ID != all[i].ID }) {
			return store.APIKey{}, api.Errorf(api.ErrConflict, "this host and the fleet each have an API key with this name; use the ID")
		}
	}
	if i < 0 { // not quoted in the error: it may be a key
		return store.APIKey{}, api.Errorf(api.ErrNotFound, "there is no API key with this ID or name")
	}
	return all[i], nil
}

// ReplaceAPIKey implements the Host of [boxgate/api/keys].
func (k *Service) ReplaceAPIKey(ctx context.Context, idOrName string, grace time.Duration) (name.Secret, api.Key, error) {
	old, err := k.findKey(idOrName)
	if err != nil {
		return name.Secret{}, api.Key{}, err
	}
	if old.ID == store.OperatorKey {
		return name.Secret{}, api.Key{}, api.Errorf(api.ErrConflict, "the operator's key is replaced by POST /v2/api-key/rotate, which writes it into its file")
	}
	key, made, err := k.editor(ctx, old.Fleet, true).Replace(old.ID, grace)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return name.Secret{}, api.Key{}, api.Errorf(api.ErrConflict, "the API key %s has expired; make another", old.ID)
	case err != nil:
		return name.Secret{}, api.Key{}, k.notStored("the API key could not be stored, the old one stays", err)
	}
	k.changed(old.ID)
	k.log.Info("an API key was replaced", zap.String("key", made.ID), zap.String("name", made.Name), zap.Duration("grace_of_old_key", grace))
	return key, keyView(made), nil
}

// DeleteAPIKey implements the Host of [boxgate/api/keys].
func (k *Service) DeleteAPIKey(ctx context.Context, idOrName string) (api.Key, error) {
	old, err := k.findKey(idOrName)
	if err != nil {
		return api.Key{}, err
	}
	if old.ID == store.OperatorKey {
		return api.Key{}, api.Errorf(api.ErrConflict, "the operator's key cannot be revoked, only replaced: api-key rotate")
	}
	if err := k.delete(ctx, old); errors.Is(err, store.ErrNotFound) {
		return api.Key{}, api.ErrNotFound
	} else if err != nil {
		return api.Key{}, k.notStored("the API key could not be revoked, it still works", err)
	}
	k.changed(old.ID)
	if err := k.loadRevoked(); err != nil {
		k.log.Error("the quotas of revoked API keys could not be read; they stay as they were", zap.Error(err))
	}
	k.models.RemoveKey(old.ID)
	k.log.Info("an API key was revoked", zap.String("key", old.ID), zap.String("name", old.Name))
	return keyView(old), nil
}

// SetAPIKeyQuotas implements the Host of [boxgate/api/keys].
func (k *Service) SetAPIKeyQuotas(ctx context.Context, idOrName string, named map[quotas.Kind]int64, model *llm.Limit) (api.Key, error) {
	old, err := k.findKey(idOrName)
	if err != nil {
		return api.Key{}, err
	}
	if !old.Fleet { // the book is set below; that of a fleet's key by ApplyFleet
		k.settingQuotas.Lock()
		defer k.settingQuotas.Unlock()
	}
	if CallerOf(old).Holder().Operator {
		return api.Key{}, api.Errorf(api.ErrConflict, "the API key %s has the role %s, which has no quotas", old.Name, old.Role)
	}
	set, err := k.editor(ctx, old.Fleet, true).ChangeQuotas(old.ID, func(now store.APIKey) (map[string]int64, llm.Limit) {
		own := quotas.LimitsFromMap(now.Quotas)
		for kind, n := range named {
			own[kind] = n
		}
		if model != nil {
			return own.Map(), *model
		}
		return own.Map(), now.Model
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return api.Key{}, api.ErrNotFound
	case err != nil:
		return api.Key{}, k.notStored("the quotas of the API key could not be stored; the previous ones apply", err)
	}
	if !set.Fleet {
		k.quotas.Set(CallerOf(set).Holder(), quotas.LimitsFromMap(set.Quotas))
		k.models.SetKey(set)
	}
	k.log.Info("the quotas of an API key were changed", zap.String("key", set.ID), zap.String("name", set.Name), zap.Any("quotas", set.Quotas), zap.Stringer("model", set.Model))
	return keyView(set), nil
}

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

// DerivedSecrets implements the Secrets of [boxgate/api/gateway].
func (s *Secrets) DerivedSecrets(n string) (derived []string, known bool) {
	return s.secrets.Derived(n), s.secrets.Has(n)
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
	k.changed(store.OperatorKey)
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
