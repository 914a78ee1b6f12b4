package apitest

import (
	"context"
	"maps"
	"slices"

	"boxgate/api"
	"boxgate/policy/name"
)

// KeySecrets implements the Host of [boxgate/api/keysecrets].
func (h *Host) KeySecrets(context.Context) (list []api.KeySecret, err error) {
	leave, err := h.beginCall()
	defer leave()
	for _, id := range slices.Sorted(maps.Keys(h.Stored)) {
		list = append(list, h.Stored[id])
	}
	return list, err
}

// CreateKeySecret implements the Host of [boxgate/api/keysecrets].
func (h *Host) CreateKeySecret(ctx context.Context, n string, with api.KeySecretChange) (api.KeySecret, error) {
	leave, err := h.beginCall()
	defer leave()
	key := api.CallerOf(ctx).Key
	made := api.KeySecret{ID: name.KeySecret(key, n), Key: key, Name: n, Metadata: with.Metadata, Version: 1}
	if with.Hosts != nil {
		made.Hosts = *with.Hosts
	}
	if _, taken := h.Stored[made.ID]; taken && err == nil {
		err = api.ErrConflict
	}
	if err != nil {
		return api.KeySecret{}, err
	}
	if h.Stored == nil {
		h.Stored = map[string]api.KeySecret{}
	}
	h.Stored[made.ID] = made
	return made, nil
}

// ReplaceKeySecret implements the Host of [boxgate/api/keysecrets].
func (h *Host) ReplaceKeySecret(_ context.Context, id string, _ api.KeySecretChange) (api.KeySecret, error) {
	leave, err := h.beginCall()
	defer leave()
	s, known := h.Stored[id]
	if !known && err == nil {
		err = api.ErrNotFound
	}
	if err != nil {
		return api.KeySecret{}, err
	}
	s.Version++
	h.Stored[id] = s
	return s, nil
}

// DeleteKeySecret implements the Host of [boxgate/api/keysecrets].
func (h *Host) DeleteKeySecret(_ context.Context, id string) error {
	leave, err := h.beginCall()
	defer leave()
	delete(h.Stored, id)
	return err
}

// FindKeySecret finds the secret that a key has stored, for the configuration of a server.
func (h *Host) FindKeySecret(key, n string, _ name.Pattern) (source, flaw string, found bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if name.IsSecretName(n) {
		n = name.KeySecret(key, n)
	}
	s, found := h.Stored[n]
	return n, "", found && s.Key == key
}
