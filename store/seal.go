package store

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/crypto/chacha20poly1305"
)

// sealer encrypts the secrets of the store, each separately, with one random data key. age only encrypts that data key:
//
//   - a passphrase then costs one scrypt at the start, not one a value;
//   - a value is bound to its place. age has no associated data, so someone who can write the file could move one box's header rules to another; here the kind of record and the box are authenticated with the value;
//   - the key file or passphrase can be changed by re-encrypting 32 bytes.
//
// XChaCha20-Poly1305 was chosen for its nonce: 24 random bytes never repeat, so no counter has to survive a crash.
//
// A value is sealed with the data key of the transaction that reads or writes it: the one whose encrypted form that
// transaction sees. So the key can be changed while others read ([DB.RotateKey]). Safe for concurrent use.
type sealer struct {
	mu    sync.RWMutex
	known map[string]*dataKey // by its encrypted form
}

// dataKey has the keys derived from a data key.
type dataKey struct {
	aead cipher.AEAD // of secrets
	tags []byte      // key of the tags of documents
}

// learn adds a data key to the known ones; key is cleared.
func (s *sealer) learn(wrapped, key []byte) error {
	defer clear(key)
	aead, err := chacha20poly1305.NewX(key)
	if err != nil {
		return fmt.Errorf("the data key of the store is unusable: %w", err)
	}
	tags, err := hkdf.Key(sha256.New, key, nil, "boxgate store: tags of documents", sha256.Size)
	if err != nil {
		return fmt.Errorf("the data key of the store is unusable: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[string(wrapped)] = &dataKey{aead: aead, tags: tags}
	return nil
}

// of returns the transaction's data key.
func (s *sealer) of(tx *bolt.Tx) (*dataKey, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if key := s.known[string(tx.Bucket(bucketMeta).Get(keyDataKey))]; key != nil {
		return key, nil
	}
	return nil, errors.New("the data key of the store is not known")
}

// openSealer decrypts the data key of a store, and upgrades the store to the current schema if it is older.
func openSealer(b *bolt.DB, dir, passphrase, env, path string) (*sealer, error) {
	var wrapped []byte
	var sealing string
	err := b.View(func(tx *bolt.Tx) error {
		if meta := tx.Bucket(bucketMeta); meta != nil {
			wrapped, sealing = bytes.Clone(meta.Get(keyDataKey)), string(meta.Get(keySealing))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if wrapped == nil {
		return nil, fmt.Errorf("the store %s has no data key: %w", path, errDamaged)
	}
	if err := checkSealing(sealing, passphrase, env); err != nil {
		return nil, err
	}
	k, err := openKeyring(dir, passphrase, env)
	if err != nil {
		return nil, err
	}
	content, i, err := k.unwrap(wrapped)
	if err != nil {
		return nil, err
	}
	defer clear(content)
	key, schema, err := splitDataKey(content)
	if err != nil {
		return nil, err
	}
	s := &sealer{known: map[string]*dataKey{}}
	if err := s.learn(wrapped, bytes.Clone(key)); err != nil {
		return nil, err
	}
	if err := s.migrate(b, k, key, schema, path); err != nil {
		return nil, err
	}
	return s, k.settle(i)
}

// age encrypts the data key and the schema of the store at the time it was made. For schema 1 that was only the key. So
// no one who cannot encrypt a data key can make a store look older than it is.
func joinDataKey(key []byte, schema byte) []byte { return append(bytes.Clone(key), schema) }

func splitDataKey(content []byte) (key []byte, schema int, err error) {
	switch len(content) {
	case chacha20poly1305.KeySize:
		return content, 1, nil
	case chacha20poly1305.KeySize + 1:
		return content[:chacha20poly1305.KeySize], int(content[chacha20poly1305.KeySize]), nil
	}
	return nil, 0, errors.New("the data key of the store has the wrong length; restore a backup")
}

// checkSealing refuses to open a store in another way than it was created.
func checkSealing(sealing, passphrase, env string) error {
	switch {
	case sealing != sealedByPassphrase && sealing != sealedByFile:
		return fmt.Errorf("the store does not say how its secrets are encrypted: %w", errDamaged)
	case sealing == sealedByPassphrase && passphrase == "":
		return fmt.Errorf("the secrets of this store are encrypted with a passphrase: set it in %s", orName(env))
	case sealing == sealedByFile && passphrase != "":
		return fmt.Errorf("the secrets of this store are encrypted with its key file: unset %s", orName(env))
	}
	return nil
}

func orName(env string) string {
	if env == "" {
		return "the environment"
	}
	return env
}

// newKey makes a data key, learns it and returns it encrypted.
func (s *sealer) newKey(k keyring) (wrapped []byte, err error) {
	key := make([]byte, chacha20poly1305.KeySize)
	_, _ = rand.Read(key) // never fails
	content := joinDataKey(key, byte(schemaNow))
	defer clear(content)
	if wrapped, err = k.wrap(content); err != nil {
		return nil, err
	}
	return wrapped, s.learn(wrapped, key)
}

// putDataKey makes an encrypted data key that of this and later transactions.
func putDataKey(tx *bolt.Tx, wrapped []byte, sealing string) error {
	meta := tx.Bucket(bucketMeta)
	return errors.Join(meta.Put(keyDataKey, wrapped), meta.Put(keySealing, []byte(sealing)))
}

// place is what a sealed value is bound to: the bucket it is in and its key there.
func place(bucket []byte, owner string) []byte {
	return append(append(bytes.Clone(bucket), 0), owner...)
}

// sealJSON encodes and encrypts v for one place of the store.
func (s *sealer) sealJSON(tx *bolt.Tx, bucket []byte, owner string, v any) ([]byte, error) {
	key, err := s.of(tx)
	if err != nil {
		return nil, err
	}
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return sealed(key.aead, bucket, owner, plain), nil
}

// openJSON is the reverse of sealJSON. It fails for a value that was changed or moved.
func (s *sealer) openJSON(tx *bolt.Tx, bucket []byte, owner string, sealed []byte, v any) error {
	key, err := s.of(tx)
	if err != nil {
		return err
	}
	plain, err := unsealed(key.aead, bucket, owner, sealed)
	if err != nil {
		return err
	}
	if err := decodeKnown(plain, v); err != nil {
		return fmt.Errorf("a secret of the store (%s of %s) has a format that this version does not know", bucket, owner) // err may quote it
	}
	return nil
}

// sealed encrypts a value for one place of the store.
func sealed(aead cipher.AEAD, bucket []byte, owner string, plain []byte) []byte {
	nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+len(plain)+aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return aead.Seal(nonce, nonce, plain, place(bucket, owner))
}

// unsealed is the reverse of sealed.
func unsealed(aead cipher.AEAD, bucket []byte, owner string, sealed []byte) ([]byte, error) {
	n := aead.NonceSize()
	if len(sealed) < n {
		return nil, fmt.Errorf("a secret of the store (%s of %s) is truncated; restore a backup", bucket, owner)
	}
	plain, err := aead.Open(nil, sealed[:n], sealed[n:], place(bucket, owner))
	if err != nil {
		return nil, fmt.Errorf("a secret of the store (%s of %s) was changed or moved; restore a backup", bucket, owner)
	}
	return plain, nil
}
