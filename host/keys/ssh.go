package keys

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/store"
)

// sshIndex finds API keys by their public keys. The zero value has none. Safe for concurrent use.
type sshIndex struct {
	mu    sync.Mutex
	byKey map[string]store.APIKey // by the public key; the latest record of the API key
}

// of returns the record of the API key that has a public key.
func (x *sshIndex) of(public []byte) (store.APIKey, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	k, ok := x.byKey[string(public)]
	return k, ok
}

// indexSSHKeys reads the public keys of all API keys. If the store cannot be read, no public key is valid.
func (k *Service) indexSSHKeys() {
	k.ssh.mu.Lock()
	defer k.ssh.mu.Unlock()
	k.ssh.byKey = map[string]store.APIKey{}
	all, err := k.keys.All()
	if err != nil {
		k.log.Error("the API keys cannot be read; no public key logs in over SSH", zap.Error(err))
		return
	}
	for _, found := range all {
		for _, s := range found.SSHKeys {
			if before, known := k.ssh.byKey[string(s.Key)]; !known || before.CreatedAt.Before(found.CreatedAt) {
				k.ssh.byKey[string(s.Key)] = found
			}
		}
	}
}

// LookUpSSH returns the owner of the API key with this public key, in the wire format of RFC 4253, section 6.6, and the SHA-256 of that key, if
// it is valid now.
func (k *Service) LookUpSSH(public []byte) (found api.Key, hash [sha256.Size]byte, ok bool) {
	indexed, ok := k.ssh.of(public)
	if !ok {
		return api.Key{}, hash, false
	}
	found, ok = k.LookUp(indexed.Hash)
	if !ok || !slices.ContainsFunc(found.SSHKeys, func(s api.SSHKey) bool { return string(s.Key) == string(public) }) {
		return api.Key{}, hash, false
	}
	return found, indexed.Hash, true
}

// HasSSH reports whether the API key of that ID has this public key.
func (k *Service) HasSSH(id string, public []byte) bool {
	indexed, ok := k.ssh.of(public)
	return ok && indexed.ID == id
}

// sshKeys returns the public keys of a record.
func sshKeys(k store.APIKey) (list []api.SSHKey) {
	for _, s := range k.SSHKeys {
		list = append(list, api.SSHKey{ID: s.ID(), Key: s.Key, Name: s.Name, AddedAt: s.AddedAt})
	}
	return list
}

// AddSSHKey implements the Host of [boxgate/api/keys].
func (k *Service) AddSSHKey(ctx context.Context, idOrName, name string, public []byte) (api.Key, error) {
	old, err := k.findKey(idOrName)
	if err != nil {
		return api.Key{}, err
	}
	if old.ID == store.OperatorKey {
		return api.Key{}, api.Errorf(api.ErrConflict, "the operator's key has no public keys; make a key with the role admin for them")
	}
	if _, taken := k.ssh.of(public); taken {
		return api.Key{}, errSSHKeyTaken()
	}
	set, err := k.editor(ctx, old.Fleet, false).AddSSHKey(old.ID, store.SSHKey{Key: public, Name: name, AddedAt: time.Now().UTC()})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return api.Key{}, api.ErrNotFound
	case errors.Is(err, store.ErrSSHKeyTaken):
		return api.Key{}, errSSHKeyTaken()
	case errors.Is(err, store.ErrManySSHKeys):
		return api.Key{}, api.Errorf(api.ErrLimit, "the API key has %d public keys, which is the limit; remove some", store.MaxSSHKeys)
	case err != nil:
		return api.Key{}, k.notStored("the public key could not be stored, nothing was changed", err)
	}
	k.indexSSHKeys()
	k.log.Info("a public key for SSH was added to an API key", zap.String("key", set.ID), zap.String("name", set.Name))
	return keyView(set), nil
}

func errSSHKeyTaken() error {
	return api.Errorf(api.ErrConflict, "an API key has this public key already; remove it there first")
}

// RemoveSSHKey implements the Host of [boxgate/api/keys].
func (k *Service) RemoveSSHKey(ctx context.Context, idOrName, id string) (api.Key, error) {
	old, err := k.findKey(idOrName)
	if err != nil {
		return api.Key{}, err
	}
	set, err := k.editor(ctx, old.Fleet, true).RemoveSSHKey(old.ID, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return api.Key{}, api.ErrNotFound
	case err != nil:
		return api.Key{}, k.notStored("the public key could not be removed, it still works", err)
	}
	k.changed(old.ID)
	k.log.Info("a public key for SSH was removed from an API key", zap.String("key", set.ID), zap.String("name", set.Name))
	return keyView(set), nil
}
