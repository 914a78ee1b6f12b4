// Package document seals the secrets of the store with the data key, and gives every document a tag, by which changed,
// moved, missing and resurrected documents are detected.
package document

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/crypto/chacha20poly1305"

	"boxgate/store/layout"
)

// Sealer encrypts the secrets of the store, each separately, with one random data key. age only encrypts that data key:
//
//   - a passphrase then costs one scrypt at the start, not one per value;
//   - a value is bound to its place. age has no associated data, so an attacker with write access to the file could move
//     one box's header rules to another; here the kind of record and the box are authenticated with the value;
//   - the key file or passphrase can be changed by re-encrypting 32 bytes.
//
// XChaCha20-Poly1305 was chosen for its nonce: 24 random bytes never repeat, so no counter has to survive a crash.
//
// A value is sealed with the data key of the transaction that reads or writes it, which the transaction finds by its
// encrypted form. So the key can be changed during reads. Safe for concurrent use.
type Sealer struct {
	mu    sync.RWMutex
	known map[string]*Key // by its encrypted form
}

// Key has the keys derived from a data key.
type Key struct {
	aead cipher.AEAD // for secrets
	tags []byte      // key of the tags of documents
}

// NewSealer returns a sealer without data keys.
func NewSealer() *Sealer { return &Sealer{known: map[string]*Key{}} }

// AddKey adds a data key and clears key.
func (s *Sealer) AddKey(wrapped, key []byte) error {
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
	s.known[string(wrapped)] = &Key{aead: aead, tags: tags}
	return nil
}

// Key returns the transaction's data key.
func (s *Sealer) Key(tx *bolt.Tx) (*Key, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if key := s.known[string(tx.Bucket(layout.Meta).Get(layout.DataKey))]; key != nil {
		return key, nil
	}
	return nil, errors.New("the data key of the store is not known")
}

// joinDataKey returns the content that age encrypts: the data key and the schema at the time it was made (in schema 1
// only the key). So making a store look older than it is requires encrypting a store look older than it is.
func joinDataKey(key []byte, schema byte) []byte { return append(bytes.Clone(key), schema) }

// ParseKey splits the content that age encrypted into the data key, which shares its memory, and the schema.
func ParseKey(content []byte) (key []byte, schema int, err error) {
	switch len(content) {
	case chacha20poly1305.KeySize:
		return content, 1, nil
	case chacha20poly1305.KeySize + 1:
		return content[:chacha20poly1305.KeySize], int(content[chacha20poly1305.KeySize]), nil
	}
	return nil, 0, errors.New("the data key of the store has the wrong length; restore a backup")
}

// NewKey makes a data key, adds it and returns it encrypted by wrap.
func (s *Sealer) NewKey(wrap func(content []byte) ([]byte, error)) (wrapped []byte, err error) {
	key := make([]byte, chacha20poly1305.KeySize)
	_, _ = rand.Read(key) // never fails
	return s.WrapKey(key, wrap)
}

// WrapKey adds a data key and returns it encrypted by wrap, for the current schema. It clears key.
func (s *Sealer) WrapKey(key []byte, wrap func(content []byte) ([]byte, error)) (wrapped []byte, err error) {
	content := joinDataKey(key, byte(layout.SchemaNow))
	defer clear(content)
	if wrapped, err = wrap(content); err != nil {
		return nil, err
	}
	return wrapped, s.AddKey(wrapped, key)
}

// PutKey sets the encrypted data key of this and later transactions.
func PutKey(tx *bolt.Tx, wrapped []byte, sealing string) error {
	meta := tx.Bucket(layout.Meta)
	return errors.Join(meta.Put(layout.DataKey, wrapped), meta.Put(layout.Sealing, []byte(sealing)))
}

// associatedData returns the associated data of a sealed value: its bucket and its key there.
func associatedData(bucket []byte, owner string) []byte {
	return append(append(bytes.Clone(bucket), 0), owner...)
}

// SealJSON encodes and encrypts v for one place of the store.
func (s *Sealer) SealJSON(tx *bolt.Tx, bucket []byte, owner string, v any) ([]byte, error) {
	key, err := s.Key(tx)
	if err != nil {
		return nil, err
	}
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return key.Seal(bucket, owner, plain), nil
}

// OpenJSON is the reverse of [Sealer.SealJSON]. It fails for a value that was changed or moved.
func (s *Sealer) OpenJSON(tx *bolt.Tx, bucket []byte, owner string, sealed []byte, v any) error {
	key, err := s.Key(tx)
	if err != nil {
		return err
	}
	plain, err := key.Open(bucket, owner, sealed)
	if err != nil {
		return err
	}
	if err := DecodeOwn(plain, v); err != nil {
		return fmt.Errorf("a secret of the store (%s of %s) has a format that this version does not know", bucket, owner) // err may quote the secret
	}
	return nil
}

// Seal encrypts a value for one place of the store.
func (k *Key) Seal(bucket []byte, owner string, plain []byte) []byte {
	nonce := make([]byte, k.aead.NonceSize(), k.aead.NonceSize()+len(plain)+k.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return k.aead.Seal(nonce, nonce, plain, associatedData(bucket, owner))
}

// Open is the reverse of [Key.Seal].
func (k *Key) Open(bucket []byte, owner string, sealed []byte) ([]byte, error) {
	n := k.aead.NonceSize()
	if len(sealed) < n {
		return nil, fmt.Errorf("a secret of the store (%s of %s) is truncated; restore a backup", bucket, owner)
	}
	plain, err := k.aead.Open(nil, sealed[:n], sealed[n:], associatedData(bucket, owner))
	if err != nil {
		return nil, fmt.Errorf("a secret of the store (%s of %s) was changed or moved; restore a backup", bucket, owner)
	}
	return plain, nil
}

// Decode decodes a document into v, a struct without maps. It refuses unknown members, duplicate members in any case,
// values of another type and trailing data: a document that this version does not fully understand may have another
// meaning than intended.
func Decode(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := checkMembers(dec); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the document")
	}
	return DecodeOwn(data, v)
}

// DecodeOwn is Decode for documents that only this program has written, and cannot have been changed: it does not look for
// duplicate members. v may have maps.
func DecodeOwn(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

// checkMembers reads one value and refuses objects with duplicate members. Like encoding/json, it ignores the case of
// members.
func checkMembers(dec *json.Decoder) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for dec.More() {
		if open == '{' {
			name, err := dec.Token()
			if err != nil {
				return err
			}
			folded := strings.ToLower(fmt.Sprint(name))
			if seen[folded] {
				return fmt.Errorf("duplicate member %q", name)
			}
			seen[folded] = true
		}
		if err := checkMembers(dec); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}
