package keysecrets

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/internal/required"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// Bounds of the secrets of all API keys together, in bytes. A secret counts with its names and texts, and overhead for the rest.
const (
	maxAll    = 32 << 20
	maxOthers = maxAll / 4 * 3 // of keys that are not admin keys, so that these always can store some
	overhead  = 512
)

// expiryInterval is the interval at which the secrets of expired API keys are deleted. They are not used from the expiry on.
const expiryInterval = time.Minute

// Holdings reserves places for objects of API keys; implemented by [boxgate/host/keys.Holdings].
type Holdings interface {
	Reserve(ctx context.Context, k quotas.Kind, n int64) (done func(), err error)
}

// Config configures a [Service].
type Config struct {
	Log      *zap.Logger
	Values   *Values
	Holdings Holdings
	// Cut cuts the requests in progress that carry a secret that was deleted, in this process and its predecessor.
	Cut func(id string)
	// Replaced tells a predecessor, which may still have connections of boxes, that a value must not be used any longer.
	Replaced func(id string)
}

// Service stores, replaces and deletes the secrets of API keys. It implements the Host of [boxgate/api/keysecrets]. Safe for concurrent
// use.
type Service struct {
	config Config
	*Values
	stored atomic.Bool // secrets of keys that have ended may still be in the store
}

// New returns the service.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Service{config: c, Values: c.Values}, nil
}

// KeySecrets implements the Host of [boxgate/api/keysecrets].
func (s *Service) KeySecrets(context.Context) ([]api.KeySecret, error) {
	state := s.now.Load()
	list := make([]api.KeySecret, 0, len(state.entries))
	for _, e := range state.entries {
		if state.isValid(e.Key) {
			list = append(list, shown(e.KeySecret))
		}
	}
	slices.SortFunc(list, func(a, b api.KeySecret) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// shown returns a secret without its value.
func shown(s store.KeySecret) api.KeySecret {
	return api.KeySecret{
		ID: s.ID(), Key: s.Key, Name: s.Name, Hosts: s.Hosts, Metadata: s.Metadata, Version: s.Version, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
}

// CreateKeySecret implements the Host of [boxgate/api/keysecrets].
func (s *Service) CreateKeySecret(ctx context.Context, n string, with api.KeySecretChange) (api.KeySecret, error) {
	caller := api.CallerOf(ctx)
	if caller.Role == api.RoleAdmin && s.now.Load().configured.Has(n) {
		return api.KeySecret{}, api.Errorf(api.ErrConflict, "the gateway's configuration has a secret %q, which rules of admin keys refer to by this name; choose another", n)
	}
	done, err := s.config.Holdings.Reserve(ctx, quotas.Secrets, 1)
	if err != nil {
		return api.KeySecret{}, err
	}
	defer done()
	s.changing.Lock()
	defer s.changing.Unlock()
	now := time.Now().UTC()
	made := store.KeySecret{Key: caller.Key, Name: n, Value: with.Value, Metadata: with.Metadata, Version: 1, CreatedAt: now, UpdatedAt: now}
	if with.Hosts != nil {
		made.Hosts = *with.Hosts
	}
	if err := s.checkRoom(caller, made); err != nil {
		return api.KeySecret{}, err
	}
	if err := s.store.Create(made); err != nil {
		return api.KeySecret{}, s.notStored("the secret could not be stored, nothing was made", n, err)
	}
	s.publish(made)
	return shown(made), nil
}

// publish puts a stored secret into force. The caller holds s.changing.
func (s *Service) publish(stored store.KeySecret) {
	ends, err := s.keys.KeyEnds()
	s.change(func(next *view) {
		if err == nil { // otherwise a new key has no secrets until its next change
			next.ends = ends
		}
		next.entries[stored.ID()] = newEntry(stored)
	})
}

// notStored returns the error for a change that the store refused.
func (s *Service) notStored(what, n string, err error) error {
	switch {
	case errors.Is(err, store.ErrConflict):
		return api.Errorf(api.ErrConflict, "this API key has a secret %q already; replace its value (PUT), or choose another name", n)
	case errors.Is(err, store.ErrNotFound):
		return notFound(n)
	}
	return change.NotStored(s.log, what, err)
}

func notFound(n string) error {
	return api.Errorf(api.ErrNotFound, "this API key has no secret %q", name.ShownSecretName(n))
}

// checkRoom refuses a secret that would exceed the bounds of all API keys together. The caller holds s.changing.
func (s *Service) checkRoom(caller api.Caller, next store.KeySecret) error {
	most := maxAll
	if caller.Role != api.RoleAdmin {
		most = maxOthers
	}
	sum := costOf(next)
	for id, e := range s.now.Load().entries {
		if id != next.ID() {
			sum += costOf(e.KeySecret)
		}
	}
	if sum > most {
		return api.Errorf(api.ErrLimit, "the secrets of all API keys have the size that is possible on this gateway; delete some")
	}
	return nil
}

// costOf returns the size that a secret counts with, in bytes.
func costOf(s store.KeySecret) int {
	n := overhead + len(s.Key) + len(s.Name) + len(s.Value.Reveal())
	for _, host := range s.Hosts {
		n += len(host)
	}
	for key, text := range s.Metadata {
		n += len(key) + len(text)
	}
	return n
}

// ReplaceKeySecret implements the Host of [boxgate/api/keysecrets].
func (s *Service) ReplaceKeySecret(ctx context.Context, id string, with api.KeySecretChange) (api.KeySecret, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	old, known := s.now.Load().entries[id]
	if !known {
		_, n, _ := name.SplitKeySecret(id)
		return api.KeySecret{}, notFound(n)
	}
	next := old.KeySecret
	next.Value, next.Version, next.UpdatedAt = with.Value, old.Version+1, time.Now().UTC()
	if with.Hosts != nil {
		next.Hosts = *with.Hosts
	}
	if with.Metadata != nil {
		next.Metadata = with.Metadata
	}
	if err := s.checkRoom(api.CallerOf(ctx), next); err != nil {
		return api.KeySecret{}, err
	}
	if err := s.store.Replace(next, old.Version); err != nil {
		return api.KeySecret{}, s.notStored("the secret could not be stored, its old value stays", next.Name, err)
	}
	s.publish(next)
	s.config.Replaced(id)
	return shown(next), nil
}

// DeleteKeySecret implements the Host of [boxgate/api/keysecrets].
func (s *Service) DeleteKeySecret(_ context.Context, id string) error {
	if err := s.remove(id); err != nil {
		_, n, _ := name.SplitKeySecret(id)
		return s.notStored("the secret could not be deleted, it is still used", n, err)
	}
	s.config.Cut(id)
	return nil
}

// remove deletes a secret, which new requests cannot use from then on.
func (s *Service) remove(id string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.store.Delete(id); err != nil {
		return err
	}
	s.change(func(next *view) { delete(next.entries, id) })
	return nil
}

// KeyChanged is called when an API key was replaced or revoked. The secrets of a key that has ended are dropped, and requests in progress
// with them are cut.
func (s *Service) KeyChanged(key string) { s.end(key) }

// Expire deletes the secrets of API keys as the keys expire, until ctx is done.
func (s *Service) Expire(ctx context.Context) {
	tick := time.NewTicker(expiryInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.end("")
		}
	}
}

// end drops the secrets of keys that have ended, cuts the requests with them, and deletes them from the store; changed is a key that may have
// ended. If the store fails, a later call tries again.
func (s *Service) end(changed string) {
	for _, id := range s.dropEnded(changed) {
		s.stored.Store(true)
		s.config.Cut(id)
	}
	if !s.stored.Swap(false) {
		return
	}
	n, err := s.store.DeleteEnded()
	if err != nil {
		s.stored.Store(true)
		s.log.Warn("the secrets of API keys that have ended could not be deleted; they are not used", zap.Error(err))
		return
	}
	s.log.Info("the secrets of API keys that have ended were deleted", zap.Int("secrets", n))
}
