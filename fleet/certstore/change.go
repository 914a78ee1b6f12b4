package certstore

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/caddyserver/certmagic"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
)

// Certmagic stores a certificate as three files in a directory of its own: certificates/ISSUER/NAME/NAME.crt, .key and .json. It stores them
// one after another, with the lock "issue_cert_NAME". A host that died in between would leave a certificate with the key of another; so the
// three are written in one transaction, when the last of them is stored.
const (
	issueLock = "issue_cert_"
	maxFiles  = 16 // in the directory of a certificate
)

// setFiles are the endings of the files of a certificate.
var setFiles = []string{".crt", ".json", ".key"}

// setOf returns the directory of the certificate that a key is a file of; empty: it is not.
func setOf(key string) string {
	parts := strings.Split(key, "/")
	if len(parts) != 4 || parts[0] != "certificates" || !slices.Contains(setFiles, path.Ext(key)) {
		return ""
	}
	return path.Dir(key)
}

// covering returns the lock of this process for the certificate that a key is a file of; nil: there is none.
func (s *Store) covering(key string) *held {
	set := setOf(key)
	if set == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for lock, h := range s.held {
		if subject, ok := strings.CutPrefix(lock, issueLock); ok && certmagic.StorageKeys.Safe(subject) == path.Base(set) {
			return h
		}
	}
	return nil
}

// Store implements [certmagic.Storage].
func (s *Store) Store(ctx context.Context, key string, data []byte) error {
	if err := check(key); err != nil {
		return err
	}
	if len(data) > maxValue {
		return fmt.Errorf("%s has %d bytes; the limit is %d", key, len(data), maxValue)
	}
	h := s.covering(key)
	if h == nil {
		return s.write(ctx, nil, map[string][]byte{key: data})
	}
	set := h.add(key, data)
	if set == nil {
		return nil
	}
	if err := s.write(ctx, h, set); err != nil {
		return err // the files stay with the lock: certmagic deletes them, which must not reach etcd
	}
	h.forget(set)
	return nil
}

// write writes values in one transaction, if this host has its lease and its lock.
func (s *Store) write(ctx context.Context, h *held, values map[string][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if err := s.room(ctx, values); err != nil {
		return err
	}
	var ops []clientv3.Op
	for key, data := range values {
		text, err := s.seal(ctx, s.place(key), data)
		if err != nil {
			return err
		}
		ops = append(ops, clientv3.OpPut(s.place(key), text))
	}
	revision, err := s.change(ctx, h, ops)
	if err != nil {
		return err
	}
	if h != nil {
		for key := range values {
			s.keep(ctx, setOf(key), revision, values)
			break
		}
	}
	return nil
}

// change makes changes in one transaction, if this host has its lease and its lock. It returns their revision.
func (s *Store) change(ctx context.Context, h *held, ops []clientv3.Op) (int64, error) {
	conditions := []clientv3.Cmp{s.Guard()}
	if h != nil {
		conditions = append(conditions, h.isOwner())
	}
	answer, err := s.Client.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		s.refused.Add(1)
		return 0, fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		s.refused.Add(1)
		return 0, ErrFenced
	}
	return answer.Header.Revision, nil
}

// room returns [ErrFull] if there is no room for values that are new.
func (s *Store) room(ctx context.Context, values map[string][]byte) error {
	var ops []clientv3.Op
	for key := range values {
		ops = append(ops, clientv3.OpGet(s.place(key), clientv3.WithCountOnly()))
	}
	answer, err := s.Client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		s.refused.Add(1)
		return fleet.Unreachable(ctx, err)
	}
	known := int64(0)
	for _, r := range answer.Responses {
		known += r.GetResponseRange().Count
	}
	if known == int64(len(values)) {
		return nil
	}
	all, err := s.Client.Get(ctx, s.place(""), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	if all.Count+int64(len(values)) > maxKeys {
		s.refused.Add(1)
		return ErrFull
	}
	return nil
}

// Delete implements [certmagic.Storage].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := check(key); err != nil {
		return err
	}
	h := s.covering(key)
	if h != nil && h.drop(key) {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if _, err := s.change(call, h, []clientv3.Op{clientv3.OpDelete(s.place(key)), clientv3.OpDelete(s.place(key)+"/", clientv3.WithPrefix())}); err != nil {
		return err
	}
	s.caching.Lock()
	defer s.caching.Unlock()
	return s.Cache.Delete(ctx, key)
}

// keep writes the files of a certificate into the cache, unless it has files of this or a later revision.
func (s *Store) keep(ctx context.Context, set string, revision int64, files map[string][]byte) {
	s.caching.Lock()
	defer s.caching.Unlock()
	if s.versions[set] >= revision {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(files)) {
		if old, err := s.Cache.Load(ctx, key); err == nil && bytes.Equal(old, files[key]) || setOf(key) != set {
			continue
		}
		if err := s.Cache.Store(ctx, key, files[key]); err != nil {
			s.Log.Warn("a certificate is not in this host's cache, which is used while etcd is away", zap.String("key", key), zap.Error(err))
			return
		}
	}
	if len(s.versions) >= maxKeys {
		clear(s.versions)
	}
	s.versions[set] = revision
}
