package store

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/crypto/chacha20poly1305"
)

// sealer encrypts the secrets of the store, each by itself, with one random data key. age encrypts that data key alone:
//
//   - a passphrase then costs one scrypt at the start, not one a value;
//   - a value is bound to its place. age has no associated data, so somebody who can write the file could give one box's
//     header rules to another; here the kind of record and the box are authenticated with the value;
//   - the key file or passphrase can be changed by encrypting 32 bytes anew.
//
// XChaCha20-Poly1305 is chosen for its nonce: 24 random bytes never repeat, so no counter has to survive a crash.
type sealer struct{ aead cipher.AEAD }

// How the data key is encrypted.
const (
	sealedByFile       = "key file"
	sealedByPassphrase = "passphrase"
)

// openSealer decrypts the data key of the store, and on the first start makes it.
func openSealer(b *bolt.DB, dir, passphrase, env string) (*sealer, error) {
	var wrapped []byte
	var sealing string
	err := b.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		wrapped, sealing = bytes.Clone(meta.Get(keyDataKey)), string(meta.Get(keySealing))
		return nil
	})
	if err != nil {
		return nil, err
	}
	first := wrapped == nil
	if err := checkSealing(first, sealing, passphrase, env); err != nil {
		return nil, err
	}
	k, err := openKeyring(dir, passphrase, env, first)
	if err != nil {
		return nil, err
	}
	if first {
		return newSealer(b, k)
	}
	return k.unwrap(wrapped)
}

// checkSealing refuses to open a store in another way than it was made.
func checkSealing(first bool, sealing, passphrase, env string) error {
	switch {
	case first:
		return nil
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

// newSealer makes a data key and keeps it, encrypted.
func newSealer(b *bolt.DB, k keyring) (*sealer, error) {
	key := make([]byte, chacha20poly1305.KeySize)
	_, _ = rand.Read(key) // never fails
	wrapped, err := k.wrap(key)
	if err != nil {
		return nil, err
	}
	err = b.Update(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		return errors.Join(meta.Put(keyDataKey, wrapped), meta.Put(keySealing, []byte(k.sealing)))
	})
	if err != nil {
		return nil, err
	}
	return sealerOf(key)
}

func sealerOf(key []byte) (*sealer, error) {
	aead, err := chacha20poly1305.NewX(key)
	clear(key)
	if err != nil {
		return nil, fmt.Errorf("the data key of the store is unusable: %w", err)
	}
	return &sealer{aead}, nil
}

// place is what a sealed value is bound to: the bucket it is in and its key there.
func place(bucket []byte, owner string) []byte {
	return append(append(bytes.Clone(bucket), 0), owner...)
}

// sealJSON encodes and encrypts v for one place of the store.
func (s *sealer) sealJSON(bucket []byte, owner string, v any) ([]byte, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, s.aead.NonceSize(), s.aead.NonceSize()+len(plain)+s.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return s.aead.Seal(nonce, nonce, plain, place(bucket, owner)), nil
}

// openJSON is the reverse of sealJSON. It fails for a value that was changed or moved.
func (s *sealer) openJSON(bucket []byte, owner string, sealed []byte, v any) error {
	n := s.aead.NonceSize()
	if len(sealed) < n {
		return fmt.Errorf("a secret of the store (%s of %s) is cut short; restore a backup", bucket, owner)
	}
	plain, err := s.aead.Open(nil, sealed[:n], sealed[n:], place(bucket, owner))
	if err != nil {
		return fmt.Errorf("a secret of the store (%s of %s) was changed or moved; restore a backup", bucket, owner)
	}
	return json.Unmarshal(plain, v)
}

// keyring wraps the data key by age.
type keyring struct {
	sealing   string
	recipient age.Recipient
	identity  age.Identity
	hint      string // what to do when the key is the wrong one
}

func (k keyring) wrap(key []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, k.recipient)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(key); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil { // which writes the last chunk
		return nil, err
	}
	return out.Bytes(), nil
}

func (k keyring) unwrap(wrapped []byte) (*sealer, error) {
	r, err := age.Decrypt(bytes.NewReader(wrapped), k.identity)
	if err != nil {
		return nil, fmt.Errorf("%s (%w)", k.hint, err)
	}
	key, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("the data key of the store is damaged; restore a backup: %w", err)
	}
	return sealerOf(key)
}
